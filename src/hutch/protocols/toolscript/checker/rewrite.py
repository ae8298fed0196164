"""Makes scripts runnable. A script that returns a value or is one function becomes a module, other scripts
stay unchanged.

The module's default export is the returned value, or the function's result. Line numbers stay the same, and
most columns do too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem, problem_at
from hutch.protocols.toolscript.checker.source_text import Outline, SourceText, Statement

# Use an arrow function, so that `this` and `arguments` have the same meaning as in a module.
_OPEN = "export default await (async () => {"
_CLOSE = "\n})();\n"
_RETURN = re.compile(r"\breturn\b")
_OPEN_FUNCTION = "export default await ("
_CLOSE_FUNCTION = ")();\n"
# The beginning of a function without parameters, with or without `export default`.
_FUNCTION = re.compile(
    r"(?:export\s+default\s+)?(?P<function>(?:async\s+)?function\s*[\w$]*\s*\(\s*\)"
    r"|(?:async\s*)?\(\s*\)[^=;{}]*=>)"
)
# Matches strings and comments in an import declaration, where a slash has no other use.
_STRING_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n\r\u2028\u2029]*|/\*.*?\*/""", re.S
)
_VISIBLE = re.compile(r"\S")
_SPACE = re.compile(r"\s")


class PreparedScript:
    """The code to run, and a mapping of its positions to the original script."""

    def __init__(self, original: str, parts: list[str | tuple[int, str]] | None = None) -> None:
        """`parts` form the new text in order. A string is inserted text. A pair (index, text) is copied from
        the original.
        """
        self.original = SourceText(original)
        self.returns = parts is not None
        """True if the default export of the module is the script's result."""
        self._segments: list[tuple[int, int, int]] = []
        pieces: list[str] = []
        length = 0
        for part in parts or [(0, original)]:
            if isinstance(part, tuple):
                self._segments.append((length, part[0], len(part[1])))
                part = part[1]
            pieces.append(part)
            length += len(part)
        self.text = "".join(pieces)

    def original_index(self, line: int, column: int) -> int:
        """Maps a position in the new text to an index in the original. Inserted text maps to the place of
        insertion.
        """
        index = self._new_text.index_at(line, column)
        number = bisect_right(self._segments, index, key=lambda position: position[0]) - 1
        new, old, length = self._segments[max(0, number)]
        return old + min(max(0, index - new), length)

    @property
    def shift(self) -> tuple[int, int, int] | None:
        """Line, first column and offset of the moved text, used to correct stack traces. Columns change on
        only one line.
        """
        if not self.returns:
            return None
        # The inserted text is directly before the last segment.
        new, old, _ = self._segments[-1]
        line, column = self._new_text.position(new)
        return line, column, column - self.original.position(old)[1]

    @cached_property
    def _new_text(self) -> SourceText:
        return SourceText(self.text)


def may_return(text: str) -> bool:
    """Returns False if the text certainly has no top-level `return`. Does not parse the text."""
    return _RETURN.search(text) is not None


def may_be_function(text: str) -> bool:
    """Returns False if the text is certainly not one function without parameters. Does not parse the text."""
    return _FUNCTION.match(text, SourceText(text).after_trivia(0)) is not None


def rewrite(name: str, text: str, outline: Outline) -> PreparedScript:
    """Returns the code to run. Raises InvalidScript if the script has both a `return` and an export."""
    if not outline.returns:
        return _call_of_function(text, outline) or PreparedScript(text)
    exports = [statement for statement in outline.statements if statement.kind == "export"]
    if exports:
        raise InvalidScript([_return_and_export(name, text, outline, statement) for statement in exports])
    leading = 0
    while outline.statements[leading].kind == "import":
        leading += 1
    first = outline.statements[leading]
    # Insert after the last import, so that columns on other lines do not move.
    begin = outline.statements[leading - 1].end if leading else first.start
    moved = [statement for statement in outline.statements[leading:] if statement.kind == "import"]
    parts: list[str | tuple[int, str]] = [(0, text[:begin]), ";" if leading else ""]
    for statement in moved:
        parts += [(statement.start, _on_one_line(text[statement.start : statement.end])), ";"]
    parts += [_OPEN, (begin, _blank_out(text, moved)[begin:]), _CLOSE]
    return PreparedScript(text, [part for part in parts if part])


def _call_of_function(text: str, outline: Outline) -> PreparedScript | None:
    """Returns code that calls the function if the whole script is one function without parameters. Models
    often write such scripts. Returns None for other scripts.
    """
    if len(outline.statements) != 1:
        return None
    statement = outline.statements[0]
    match = _FUNCTION.match(text, statement.start)
    if match is None:
        return None
    begin = match.start("function")
    function = text[begin : statement.end].rstrip().removesuffix(";")
    return PreparedScript(
        text, [(0, text[: statement.start]), _OPEN_FUNCTION, (begin, function), _CLOSE_FUNCTION]
    )


def _return_and_export(name: str, text: str, outline: Outline, export: Statement) -> ScriptProblem:
    line = SourceText(text).position(outline.returns[0])[0]
    message = (
        f"A script cannot both return and export, and this one has a return in line {line}. "
        "Remove the word `export`, or the return."
    )
    return problem_at(name, SourceText(text), export.start, export.start + len("export"), message)


def _on_one_line(declaration: str) -> str:
    """Puts an import on one line without changing its length. Comments become spaces, because a `//` comment
    would hide the code after it.
    """
    bare = _STRING_OR_COMMENT.sub(lambda match: match[1] or " " * len(match[0]), declaration)
    return _SPACE.sub(" ", bare)


def _blank_out(text: str, statements: list[Statement]) -> str:
    """Replaces statements by spaces. The length stays the same."""
    pieces, end = [], 0
    for statement in statements:
        pieces += [text[end : statement.start], _VISIBLE.sub(" ", text[statement.start : statement.end])]
        end = statement.end
    return "".join([*pieces, text[end:]])
