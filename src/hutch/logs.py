"""Configures logging: structured lines on stderr."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from hutch.settings import Settings
from hutch.text import LINE, cut, printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

MAX_ID_CHARS = 100
MAX_OWNER_CHARS = 24
MAX_LABEL_CHARS = 60
MAX_MESSAGE_CHARS = 160

_RED, _YELLOW, _GREEN, _DIM, _RESET = "\x1b[1;31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
# Words and colours of outcomes that are not failures.
_WORDS = {"ok": ("ok   ", _GREEN), "cancelled": ("stop ", _YELLOW), "suspended": ("wait ", _YELLOW)}


def configure(settings: Settings) -> None:
    """Configures logging at `log_level` and above: JSON lines with `log_json`, otherwise readable lines.

    Run records and the start message are logged at every level except `error`, because without a store the
    log is their only copy.
    """
    import structlog

    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_fields,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter if settings.log_json else RunLines(formatter, is_terminal=_is_terminal()))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in ("hutch.approvals", "hutch.runs", "hutch.serve"):
        logging.getLogger(name).setLevel(logging.ERROR if settings.log_level == "error" else logging.INFO)
    # Below WARNING, these libraries log headers and messages, which contain keys, code and inputs.
    for name in ("uvicorn", "websockets", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def shows_error_messages() -> bool:
    """Returns True if logged runs include error messages, which is the case only on a terminal."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return any(isinstance(formatter, RunLines) and formatter.is_terminal for formatter in formatters)


def _add_fields(_: Any, __: str, event: EventDict) -> EventDict:
    """Adds the items of the record's attribute `fields` to the log event. If the record has an attribute
    `event`, which is a short name, its value replaces the message, because the message repeats some of the
    fields.
    """
    record: logging.LogRecord = event["_record"]
    event["event"] = getattr(record, "event", event["event"])
    event.update(getattr(record, "fields", {}))
    return event


def _renderers(settings: Settings) -> list[Processor]:
    """Returns renderers that omit the values of variables from tracebacks, because such a value may be guest
    code or a secret.
    """
    from structlog import dev, processors

    if settings.log_json:
        return [processors.format_exc_info, processors.JSONRenderer()]
    console = dev.ConsoleRenderer(colors=_has_colors(), exception_formatter=_format_traceback)
    return [_escape_control_characters, console]


class RunLines(logging.Formatter):
    """Formats each run as one short line for people, and all other records with `others`:

    `12:03:01 ok    execbox    quickjs     3.1 ms  anna  8f3a12bc…`

    Only a terminal shows error messages: they may quote the guest's data, which is not written to files.
    """

    def __init__(self, others: logging.Formatter, *, is_terminal: bool) -> None:
        super().__init__()
        self._others = others
        self.is_terminal = is_terminal
        self._has_colors = is_terminal and _has_colors()

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] | None = getattr(record, "fields", None)
        if record.name != "hutch.runs" or fields is None:
            return self._others.format(record)
        outcome = str(fields["outcome"])
        word, color = _WORDS.get(outcome, ("FAIL ", _RED))
        owner = getattr(record, "owner_name", None) or fields["owner"]
        parts = [
            self._time(record),
            self._colored(word, color),
            f"{fields['protocol']:<10} {fields['engine']:<8} {_duration(fields['duration_ms']):>9}",
            f"{_shown(owner, MAX_OWNER_CHARS):<8}",
        ]
        if fields.get("label"):
            parts.append(_shown(fields["label"], MAX_LABEL_CHARS))
        if outcome != "ok":
            parts.append(self._colored(self._error(record, fields), color))
        # Show the whole id of a failed run, so that the user can look it up with `hutch runs show`.
        run_id = _shown(fields["run_id"], MAX_ID_CHARS)
        parts.append(self._colored(f"{run_id[:8]}…" if outcome == "ok" else run_id, _DIM))
        return "  ".join(parts).rstrip()

    def _time(self, record: logging.LogRecord) -> str:
        if self.is_terminal:
            return datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _error(self, record: logging.LogRecord, fields: Mapping[str, Any]) -> str:
        line = fields.get("line")
        code = f"{fields['outcome']}{'' if line is None else f', line {line}'}"
        is_explained = self.is_terminal and fields["outcome"] != "cancelled"
        message = getattr(record, "error_message", None) if is_explained else None
        return f"{code}: {_shown(message, MAX_MESSAGE_CHARS)}" if message else code

    def _colored(self, text: str, color: str) -> str:
        return f"{color}{text}{_RESET}" if self._has_colors else text


def _shown(text: str, max_chars: int) -> str:
    """Returns text of clients and guests without characters that control the terminal or forge records."""
    return cut(printable(" ".join(text.split()), keep=LINE), max_chars)


def _duration(milliseconds: float) -> str:
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def _is_terminal() -> bool:
    return sys.stderr.isatty()


def _has_colors() -> bool:
    return _is_terminal() and not os.environ.get("NO_COLOR")


def _escape_control_characters(_: Any, __: str, event: EventDict) -> EventDict:
    """Keeps text of clients and guests from controlling the terminal and from forging further records."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value, keep=LINE)
    return event


def _format_traceback(stream: TextIO, exc_info: Any) -> None:
    """Writes a traceback. Its lines are indented, so that no line of an error message looks like a record."""
    from structlog import dev

    text = io.StringIO()
    dev.plain_traceback(text, exc_info)
    for line in text.getvalue().strip("\n").split("\n"):
        stream.write(f"\n  {printable(line, keep=LINE)}")
