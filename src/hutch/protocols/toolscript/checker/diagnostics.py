"""Formats problems of scripts: message, position, marked source line, signature of the tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hutch.errors import HutchError
from hutch.protocols.toolscript.checker.source_text import SourceText
from hutch.text import columns, printable

MAX_SHOWN = 20
# Maximum length of a shown source line. Longer lines are cut to a window around the problem.
MAX_WIDTH = 160
_MAX_MESSAGE = 4_000


class ScriptProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why a script cannot run. Lines and columns count from 1, as in V8."""

    file: str
    message: str
    line: int = 0
    """Line number, or 0 if the problem concerns the whole file."""
    column: int = 0
    length: int = 0
    code: int = 0
    """Error code of TypeScript, or 0 if the problem is not from the compiler."""
    source_line: str = ""
    signature: str | None = None
    """Signature of the tool, if the problem is in a tool call."""

    def __str__(self) -> str:
        return _format_problem(self)


class InvalidScript(HutchError):
    """The script is invalid. No part of the script has run."""

    code = "invalid_script"

    def __init__(self, problems: Sequence[ScriptProblem]) -> None:
        super().__init__(format_problems(problems))
        self.problems = list(problems)


def problem_at(
    file: str,
    text: SourceText,
    start: int,
    end: int,
    message: str,
    *,
    code: int = 0,
    signature: str | None = None,
) -> ScriptProblem:
    """Builds a problem for the range from `start` to `end` of a file."""
    line, column = text.position(start)
    length = text.position(end)[1] - column if text.position(end)[0] == line else 1
    return ScriptProblem(
        file=file,
        line=line,
        column=column,
        length=max(1, length),
        message=message,
        code=code,
        source_line=text.line(line),
        signature=signature,
    )


def cannot_check(file: str, reason: str) -> ScriptProblem:
    """Builds the problem for a script that the compiler cannot handle."""
    message = f"The script cannot be checked: {reason}"
    return ScriptProblem(file=file, message=message)


def format_problems(problems: Sequence[ScriptProblem]) -> str:
    """Formats problems for people and models, at most MAX_SHOWN of them."""
    shown = [_format_problem(problem) for problem in problems[:MAX_SHOWN]]
    if len(problems) > MAX_SHOWN:
        shown.append(f"… and {len(problems) - MAX_SHOWN} more.")
    return "\n\n".join(shown)


def _format_problem(problem: ScriptProblem) -> str:
    return "\n".join(_problem_lines(problem))


def _problem_lines(problem: ScriptProblem) -> Iterable[str]:
    kind = f"error TS{problem.code}" if problem.code else "error"
    first, *rest = problem.message[:_MAX_MESSAGE].split("\n")
    yield f"{kind}: {_printable(first)}"
    yield from (f"  {_printable(line)}" for line in rest)
    position = f":{problem.line}:{problem.column}" if problem.line else ""
    yield f"  {_printable(problem.file)}{position}"
    yield from _marked_source(problem)
    if problem.signature:
        yield f"  {_printable(problem.signature)}"


def marked_line(text: str, line: int, column: int) -> list[str]:
    """Returns a line of a source and a line below it that marks the column. Returns nothing for a line that
    the source does not have.
    """
    source = SourceText(text)
    if not 0 < line <= source.line_count:
        return []
    problem = ScriptProblem(
        file="", message="", line=line, column=column, length=1, source_line=source.line(line)
    )
    return [*_marked_source(problem)]


def _marked_source(problem: ScriptProblem) -> Iterable[str]:
    if problem.source_line.strip():
        number = str(problem.line)
        source, before, marked = _visible_part(problem)
        yield f"    {number} | {source}"
        yield f"    {' ' * len(number)} | {before}{marked}"


def _visible_part(problem: ScriptProblem) -> tuple[str, str, str]:
    """Returns the visible part of the source line, the padding before the mark, and the mark."""
    source = SourceText(problem.source_line)
    start = source.index_at(1, problem.column)
    end = max(start, source.index_at(1, problem.column + problem.length))
    first = max(0, start - MAX_WIDTH // 2) if len(source.text) > MAX_WIDTH else 0
    last = min(len(source.text), first + MAX_WIDTH)
    clipped = "…" if first else ""
    shown = f"{clipped}{_printable(source.text[first:last])}{'…' if last < len(source.text) else ''}"
    before = " " * len(clipped) + "".join(_blank(char) for char in source.text[first:start])
    marks = columns(source.text[start : min(end, last)])
    return shown, before, "^" * max(1, marks)


def _blank(char: str) -> str:
    return char if char == "\t" else " " * columns(char)


def _printable(text: str) -> str:
    return printable(text, keep="\t", replacement="\N{REPLACEMENT CHARACTER}")
