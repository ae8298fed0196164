"""Source texts with positions, and outlines of their top-level statements.

The compiler and V8 count UTF-16 code units, while Python counts characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import Literal

import msgspec

StatementKind = Literal["import", "export", "other"]

_SURROGATE_PAIR = re.compile("[\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|[\n\r\u2028\u2029]")
# White space and comments before a statement, and `#!` at the beginning of the file.
_TRIVIA = re.compile(r"(?:\A#![^\n\r\u2028\u2029]*)?(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.S)


class SourceText:
    """The text of a file. Positions are indices into `text`. Lines and columns count from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines: dict[int, str] = {}

    @cached_property
    def _pairs(self) -> list[int]:
        """Indices of the characters that take two UTF-16 code units."""
        return [] if self.text.isascii() else [match.start() for match in _SURROGATE_PAIR.finditer(self.text)]

    @cached_property
    def _pair_units(self) -> list[int]:
        return [index + number for number, index in enumerate(self._pairs)]

    def index(self, units: int) -> int:
        """Converts an offset in UTF-16 code units to an index."""
        return units - bisect_left(self._pair_units, units)

    def units(self, index: int) -> int:
        return index + bisect_left(self._pairs, index)

    def after_trivia(self, index: int) -> int:
        """Returns the index after the white space and comments at `index`."""
        match = _TRIVIA.match(self.text, index)
        return match.end() if match else index

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @property
    def line_count(self) -> int:
        return len(self._starts)

    def position(self, index: int) -> tuple[int, int]:
        """Returns the line and the column. The column counts UTF-16 code units."""
        line = bisect_right(self._starts, index)
        return line, self.units(index) - self.units(self._starts[line - 1]) + 1

    def index_at(self, line: int, column: int) -> int:
        """Returns the index of a line and column. Positions outside of the text are clamped."""
        start = self._starts[min(max(line, 1), len(self._starts)) - 1]
        return min(self.index(self.units(start) + max(column, 1) - 1), len(self.text))

    def line(self, number: int) -> str:
        """Returns a line without its line break. Lines are cached, because many problems may be on one very
        long line.
        """
        if number not in self._lines:
            start = self._starts[number - 1]
            end = self._starts[number] if number < len(self._starts) else len(self.text)
            self._lines[number] = self.text[start:end].rstrip("\n\r\u2028\u2029")
        return self._lines[number]


class Statement(msgspec.Struct, frozen=True):
    """A top-level statement, without the comments before it."""

    kind: StatementKind
    start: int
    end: int


class Specifier(msgspec.Struct, frozen=True):
    """A module specifier and its position."""

    text: str
    start: int
    end: int
    dynamic: bool
    """True for a specifier in `import(…)`, which is resolved only when the script reaches it."""


class Outline(msgspec.Struct, frozen=True):
    """The parts of a file's syntax tree that are needed to run the file."""

    statements: tuple[Statement, ...]
    specifiers: tuple[Specifier, ...]
    returns: tuple[int, ...]
    """Positions of `return` statements outside of functions."""
