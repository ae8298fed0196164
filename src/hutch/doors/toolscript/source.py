"""A script made runnable: unchanged, or, if it returns something outside of functions, as a module.

The module's default export is then what the script returns. Lines stay where they are, and most columns too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from hutch.doors.toolscript.outline import Outline, Statement
from hutch.doors.toolscript.problems import Problem, ScriptRefused, problem
from hutch.doors.toolscript.text import Text

# An arrow function, so that `this` and `arguments` mean what they mean in a module.
_OPEN = "export default await (async () => {"
_CLOSE = "\n})();\n"
_RETURN = re.compile(r"\breturn\b")
# In an import declaration there is no other use for a slash.
_STRING_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n\r\u2028\u2029]*|/\*.*?\*/""", re.S
)
_VISIBLE = re.compile(r"\S")
_SPACE = re.compile(r"\s")


class Source:
    """What is run of a script, and where it came from."""

    def __init__(self, original: str, parts: list[str | tuple[int, str]] | None = None) -> None:
        """`parts` are the new text in order: inserted ones, and those from a place in the original."""
        self.original = Text(original)
        self.returns = parts is not None
        """Whether the module's default export is the script's result."""
        self._places: list[tuple[int, int, int]] = []
        pieces: list[str] = []
        length = 0
        for part in parts or [(0, original)]:
            if isinstance(part, tuple):
                self._places.append((length, part[0], len(part[1])))
                part = part[1]
            pieces.append(part)
            length += len(part)
        self.text = "".join(pieces)

    def origin(self, line: int, column: int) -> int:
        """Where in the original a place in the text was; of what was inserted, where that was done."""
        index = self._as_text.at(line, column)
        number = bisect_right(self._places, index, key=lambda place: place[0]) - 1
        new, old, length = self._places[max(0, number)]
        return old + min(max(0, index - new), length)

    def locate(self, line: int, column: int) -> tuple[int, int]:
        """The same as a line and a column, such as a stack trace has them."""
        return self.original.place(self.origin(line, column))

    @property
    def shift(self) -> tuple[int, int, int] | None:
        """The one line whose columns moved, the first that did, and by how many: for stack traces."""
        if not self.returns:
            return None
        # What was inserted is between the last two parts: what came before it, and all the rest.
        new, old, _ = self._places[-1]
        line, column = self._as_text.place(new)
        return line, column, column - self.original.place(old)[1]

    @cached_property
    def _as_text(self) -> Text:
        return Text(self.text)


def may_return(text: str) -> bool:
    """False if there is certainly no `return` outside of functions, which is seen without parsing."""
    return _RETURN.search(text) is not None


def rewrite(name: str, text: str, outline: Outline) -> Source:
    """The script as it is to be run. Raises ScriptRefused for one that both returns and exports."""
    if not outline.returns:
        return Source(text)
    exports = [each for each in outline.statements if each.kind == "export"]
    if exports:
        raise ScriptRefused([_both(name, text, outline, each) for each in exports])
    leading = 0
    while outline.statements[leading].kind == "import":
        leading += 1
    first = outline.statements[leading]
    # After the last import, so that no column of what follows on other lines moves.
    begin = outline.statements[leading - 1].end if leading else first.start
    moved = [each for each in outline.statements[leading:] if each.kind == "import"]
    parts: list[str | tuple[int, str]] = [(0, text[:begin]), ";" if leading else ""]
    for each in moved:
        parts += [(each.start, _on_one_line(text[each.start : each.end])), ";"]
    parts += [_OPEN, (begin, _without(text, moved)[begin:]), _CLOSE]
    return Source(text, [part for part in parts if part])


def _both(name: str, text: str, outline: Outline, export: Statement) -> Problem:
    line = Text(text).place(outline.returns[0])[0]
    message = (
        f"A script either returns a value or exports something, and this one has a return in line {line}. "
        "Take away the word `export`, or the return."
    )
    return problem(name, Text(text), export.start, export.start + len("export"), message)


def _on_one_line(declaration: str) -> str:
    """An import at the same length, without comments, which might swallow what follows them."""
    bare = _STRING_OR_COMMENT.sub(lambda found: found[1] or " " * len(found[0]), declaration)
    return _SPACE.sub(" ", bare)


def _without(text: str, statements: list[Statement]) -> str:
    """The text at the same length, with blanks in the place of some statements."""
    pieces, end = [], 0
    for each in statements:
        pieces += [text[end : each.start], _VISIBLE.sub(" ", text[each.start : each.end])]
        end = each.end
    return "".join([*pieces, text[end:]])
