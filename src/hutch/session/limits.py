"""Limits of an execution: their encoding, truncation of logs, and messages about timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import UNSET

from hutch.session.messages import Options, SessionRequest

# Maximum number of tools that the message of a timeout names.
MAX_NAMED_TOOLS = 3


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one execution."""

    timeout_ms: float = 5_000
    memory_limit_bytes: int = 67_108_864
    max_log_lines: int = 100
    max_log_chars: int = 64_000
    max_result_bytes: int = 8_388_608
    max_calls: int = 100_000
    max_outstanding_calls: int = 256
    cancel_grace_ms: int = 25
    """Milliseconds that the runner may take to answer a cancel with the logs."""
    engine: str | None = None
    """Engine to use, for runners that have several engines."""
    check: bool = False
    """True if a remote server has to type-check the code first."""
    session: SessionRequest | None = None
    """Action of a remote server on a stateful session."""


# The text is cached, because most executions have the default limits.
@lru_cache(maxsize=64)
def options_json(limits: Limits, is_observed: bool, send_run_id: bool) -> bytes:
    """Returns the options of `execute` as JSON text."""
    options = Options(
        timeout_ms=limits.timeout_ms,
        memory_limit_bytes=limits.memory_limit_bytes,
        max_log_lines=limits.max_log_lines,
        max_log_chars=limits.max_log_chars,
        max_result_bytes=limits.max_result_bytes,
        engine=limits.engine or UNSET,
        stream_logs=is_observed or UNSET,
        send_run_id=send_run_id or UNSET,
        send_call_lines=is_observed or UNSET,
        check=limits.check or UNSET,
        session=limits.session or UNSET,
    )
    return msgspec.json.encode(options)


def timeout_message(text: str, milliseconds: float, tools: Iterable[str]) -> str:
    """Appends the time limit to a text, and the tools that the guest waited for."""
    limit = f"{milliseconds:g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"
    names = list(dict.fromkeys(tools))
    others = f" and {len(names) - MAX_NAMED_TOOLS} other tools" if len(names) > MAX_NAMED_TOOLS else ""
    return f"{text} {limit}" + (
        f", waiting for {', '.join(names[:MAX_NAMED_TOOLS])}{others}" if names else ""
    )


def clip_logs(lines: list[str], limits: Limits) -> tuple[list[str], bool]:
    """Truncates logs to the limits. Returns the lines, and True if any part was left out."""
    if len(lines) <= limits.max_log_lines and sum(map(len, lines)) <= limits.max_log_chars:
        return lines, False
    clipped_lines: list[str] = []
    remaining = limits.max_log_chars
    for line in lines[: limits.max_log_lines]:
        if remaining <= 0:
            break
        clipped_lines.append(line[:remaining])
        remaining -= len(line)
    return clipped_lines, True
