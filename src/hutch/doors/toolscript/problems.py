"""What is wrong with a script, and how that is shown: the file, the line, a mark, the tool's signature."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

from hutch.doors.toolscript.text import Text
from hutch.errors import HutchError

MOST_SHOWN = 20
# Of a line that is longer, what is around the problem.
WIDEST = 160
_LONGEST_MESSAGE = 4_000


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps a script from being run. Lines and columns count from 1, as V8 counts them."""

    file: str
    message: str
    line: int = 0
    """0 for what concerns the whole file."""
    column: int = 0
    length: int = 0
    code: int = 0
    """TypeScript's number for it; 0 for what is not from its compiler."""
    source_line: str = ""
    signature: str | None = None
    """How the tool is called whose call this is about."""

    def __str__(self) -> str:
        return show(self)


class ScriptRefused(HutchError):
    """The script cannot be run as it is. Nothing of it has been."""

    code = "invalid_script"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(present(problems))
        self.problems = list(problems)


def problem(
    file: str, text: Text, start: int, end: int, message: str, *, code: int = 0, signature: str | None = None
) -> Problem:
    """A problem with what is from `start` to `end` in a file."""
    line, column = text.place(start)
    length = text.place(end)[1] - column if text.place(end)[0] == line else 1
    return Problem(
        file=file,
        line=line,
        column=column,
        length=max(1, length),
        message=message,
        code=code,
        source_line=text.line(line),
        signature=signature,
    )


def unchecked(file: str, reason: str) -> Problem:
    """That of a script on which the compiler gives up."""
    message = f"The script cannot be checked: {reason}"
    return Problem(file=file, message=message)


def present(problems: Sequence[Problem]) -> str:
    """All of them as a text for a person or a model, or the first of very many."""
    shown = [show(each) for each in problems[:MOST_SHOWN]]
    if len(problems) > MOST_SHOWN:
        shown.append(f"… and {len(problems) - MOST_SHOWN} more.")
    return "\n\n".join(shown)


def show(problem: Problem) -> str:
    return "\n".join(_lines(problem))


def _lines(problem: Problem) -> Iterable[str]:
    kind = f"error TS{problem.code}" if problem.code else "error"
    first, *rest = problem.message[:_LONGEST_MESSAGE].split("\n")
    yield f"{kind}: {_plain(first)}"
    yield from (f"  {_plain(line)}" for line in rest)
    place = f":{problem.line}:{problem.column}" if problem.line else ""
    yield f"  {_plain(problem.file)}{place}"
    if problem.source_line.strip():
        number = str(problem.line)
        source, before, marked = _window(problem)
        yield f"    {number} | {source}"
        yield f"    {' ' * len(number)} | {before}{marked}"
    if problem.signature:
        yield f"  {_plain(problem.signature)}"


def _window(problem: Problem) -> tuple[str, str, str]:
    """The line or a part of it, what is to stand below it before the mark, and the mark."""
    source = Text(problem.source_line)
    start = source.at(1, problem.column)
    end = max(start, source.at(1, problem.column + problem.length))
    first = max(0, start - WIDEST // 2) if len(source.text) > WIDEST else 0
    last = min(len(source.text), first + WIDEST)
    clipped = "…" if first else ""
    shown = f"{clipped}{_plain(source.text[first:last])}{'…' if last < len(source.text) else ''}"
    before = " " * len(clipped) + "".join(_blank(char) for char in source.text[first:start])
    marks = sum(_width(char) for char in source.text[start : min(end, last)])
    return shown, before, "^" * max(1, marks)


def _blank(char: str) -> str:
    return char if char == "\t" else " " * _width(char)


def _width(char: str) -> int:
    """The columns that a character takes on a terminal."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _plain(text: str) -> str:
    """A source or a schema may hold what a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in text)
