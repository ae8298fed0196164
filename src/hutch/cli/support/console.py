"""Prints everything that commands print, without characters that a terminal would interpret.

Text of guests, packages, servers and other users reaches the terminal only through these functions,
`prompts` and the view of flows. A test forbids other output in `hutch.cli`.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import select
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TextIO

from hutch.errors import (
    ConfigError,
    HutchError,
    InvalidExecution,
    InvalidInput,
    InvalidPackage,
    SettingError,
)
from hutch.text import LINE, PROSE, cut, printable

# Characters, as UTF-8, that JSON leaves unescaped but a terminal interprets: DEL, C1 controls, line and
# paragraph separators, direction marks, overrides and isolates.
_CONTROL = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


_COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}
STATE_COLOURS = {
    **dict.fromkeys(("ok", "completed", "succeeded", "active", "current"), "green"),
    **dict.fromkeys(("pending", "running", "waiting", "suspended", "interrupted", "weak"), "yellow"),
    **dict.fromkeys(("failed", "missing", "cancelled", "revoked", "expired"), "red"),
}
"""Colours of the words for states in tables and reports."""
_DEFAULT_WIDTH = 80
# Minimum width of a table's last column, whatever the width of the terminal.
_MIN_LAST_COLUMN = 20


def print_json(text: bytes) -> None:
    """Prints JSON in UTF-8, which JSON requires, regardless of the terminal's encoding."""
    sys.stdout.buffer.write(_CONTROL.sub(_escape, text) + b"\n")
    sys.stdout.buffer.flush()


def print_json_value(value: Any, *, indent: int | None = None) -> None:
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Escape all non-ASCII characters, because a lone surrogate cannot be encoded in UTF-8.
        text = json.dumps(value, indent=indent).encode()
    print_json(text)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())


def print_line(text: str) -> None:
    """Prints one line to stdout. Line breaks in `text` are escaped."""
    print(printable(text, keep=LINE), flush=True)


def print_text(text: str) -> None:
    """Prints text with line breaks to stdout."""
    print(printable(text, keep=PROSE), flush=True)


def print_report(lines: Sequence[str]) -> None:
    """Prints lines to stdout, always in UTF-8, because they contain the check marks of specifications. On a
    terminal, a state at the beginning of a line is coloured.
    """
    text = "".join(f"{_with_coloured_state(printable(line, keep=LINE))}\n" for line in lines)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_log(line: str) -> None:
    """Prints a guest's log line to stderr. On a terminal, control characters are escaped."""
    print(printable(line, keep=PROSE) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, states: str | None = None) -> None:
    """Prints a table. On a terminal, its last column is cut to the width of the terminal, and the column
    `states` is coloured.
    """
    lines = [headers, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        used = sum(widths[:-1]) + 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(_MIN_LAST_COLUMN, terminal_width() - used))
    state_column = None if states is None else headers.index(states)
    for number, line in enumerate(lines):
        cells = [cut(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if number == 0:
            cells = [coloured(cell, "bold", sys.stdout) for cell in cells]
        elif state_column is not None:
            state = line[state_column].partition(" ")[0]
            colour = STATE_COLOURS.get(state, "red")
            cells[state_column] = coloured(cells[state_column], colour, sys.stdout)
        print("  ".join(cells).rstrip())


def terminal_width() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _DEFAULT_WIDTH
    except OSError:
        return _DEFAULT_WIDTH


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Returns the text in a colour, if the stream is a terminal and neither NO_COLOR nor TERM=dumb is set."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def _with_coloured_state(line: str) -> str:
    state, space, rest = line.partition(" ")
    colour = STATE_COLOURS.get(state)
    return line if colour is None else f"{coloured(state, colour, sys.stdout)}{space}{rest}"


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Prints names and values, one pair per line, aligned."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{printable(name).ljust(width)}  {printable(value, keep=PROSE)}")


def print_note(text: str) -> None:
    """Prints a note to stderr, so that stdout contains only the result of the command."""
    _print_with_prefix(text, "dim")


def print_error(text: str) -> None:
    """Prints the reason of a failure to stderr, as a note whose prefix is red on a terminal."""
    _print_with_prefix(text, "red")


def _print_with_prefix(text: str, colour: str) -> None:
    prefix = coloured("hutch:", colour, sys.stderr)
    print(f"{prefix} {printable(text, keep=PROSE)}", file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    """Prints text with line breaks to stderr, without the prefix of a note."""
    print(printable(text, keep=PROSE), file=sys.stderr, flush=True)


class ProgressLine:
    """A line on stderr that is replaced in place. Used only on a terminal."""

    def show(self, text: str) -> None:
        print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class GuestOutput:
    """Passes on the output of a guest as it arrives. On a terminal, control characters are escaped, because
    they could overwrite the question of an approval.
    """

    def __init__(self, stream: Literal["stdout", "stderr"]) -> None:
        self._descriptor = 1 if stream == "stdout" else 2
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if self._is_terminal() else None

    def write(self, data: bytes) -> None:
        """Writes all of `data`. Raises BrokenPipeError."""
        if self._decoder is not None:
            text = self._decoder.decode(data).replace("\r\n", "\n")
            data = printable(text, keep=PROSE).encode()
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                # Wait until the descriptor is writable. It may be non-blocking although this process did not
                # ask for that: another process that shares the open file can set O_NONBLOCK.
                select.select([], [self._descriptor], [])

    def _is_terminal(self) -> bool:
        try:
            return os.isatty(self._descriptor)
        except OSError:
            return False


def format_age(timestamp: float) -> str:
    """Formats a time, given in seconds since the epoch, as `5 min ago`."""
    minutes = max(0, int(time.time() - timestamp)) // 60
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} days ago"


def format_age_of(moment: str | None) -> str:
    """Formats a time from the database as `5 min ago`, or None as `never`."""
    return "never" if moment is None else format_age(datetime.fromisoformat(moment).timestamp())


def exit_code_of(error: HutchError) -> int:
    """Returns the exit code for an error: 2 for invalid input, otherwise 1."""
    input_errors = InvalidExecution | InvalidInput | InvalidPackage | SettingError | ConfigError
    return 2 if isinstance(error, input_errors) else 1
