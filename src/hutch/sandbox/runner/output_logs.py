"""Adds direct output, which a guest wrote to stdout and stderr without its console, to the logs of its
result.
"""

from __future__ import annotations

import msgspec

from hutch.session.limits import Limits, clip_logs
from hutch.session.run import Result

MAX_OUTPUT_BYTES = 64 * 1024
# Character that starts a line of the guest's console output. The rest of the line is JSON: the text, or null
# if output was dropped.
CONSOLE_MARK = "\x1e"


def with_output(result: Result, output: bytes | bytearray, limits: Limits) -> Result:
    """Returns the result with the output in its logs, within the limits.

    The runner also copies console output to stdout. This copy provides the logs of a guest that was killed.
    """
    truncated = result.logs_truncated or len(output) >= MAX_OUTPUT_BYTES
    logs = list(result.logs)
    text = output.decode(errors="replace").removesuffix("\n")
    for line in text.split("\n") if output else ():
        direct, console = _split_console_line(line)
        logs += direct
        truncated |= console is None
        if console and not result.logs:
            logs += console
    logs, clipped = clip_logs(logs, limits)
    return msgspec.structs.replace(result, logs=logs, logs_truncated=truncated or clipped)


def _split_console_line(line: str) -> tuple[list[str], list[str] | None]:
    """Splits a line into direct output of the guest and console output. A console line may follow direct
    output without a line break. The console output is None if some of it was dropped.
    """
    direct, mark, encoded = line.rpartition(CONSOLE_MARK)
    if not mark:
        return [line], []
    try:
        console = msgspec.json.decode(encoded, type=str | None)
    except ValueError:
        return [line] if direct else [], []
    return [direct] if direct else [], None if console is None else [console]
