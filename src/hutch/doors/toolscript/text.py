"""A source text and places in it. The compiler and V8 count in UTF-16 code units, Python in characters."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import cached_property

_PAIR = re.compile("[\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|[\n\r\u2028\u2029]")
# What may stand before a statement: white space and comments, and `#!` at the very beginning.
_TRIVIA = re.compile(r"(?:\A#![^\n\r\u2028\u2029]*)?(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.S)


class Text:
    """A file's text. Places in it are indices into `text`; lines and columns count from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines: dict[int, str] = {}

    @cached_property
    def _pairs(self) -> list[int]:
        """Where characters are that take two code units."""
        return [] if self.text.isascii() else [found.start() for found in _PAIR.finditer(self.text)]

    @cached_property
    def _pair_units(self) -> list[int]:
        return [index + number for number, index in enumerate(self._pairs)]

    def index(self, units: int) -> int:
        """The place that is so many code units from the beginning."""
        return units - bisect_left(self._pair_units, units)

    def units(self, index: int) -> int:
        return index + bisect_left(self._pairs, index)

    def after_trivia(self, index: int) -> int:
        """Where the statement begins that follows."""
        found = _TRIVIA.match(self.text, index)
        return found.end() if found else index

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    def place(self, index: int) -> tuple[int, int]:
        """Line and column, the column in code units."""
        line = bisect_right(self._starts, index)
        return line, self.units(index) - self.units(self._starts[line - 1]) + 1

    def at(self, line: int, column: int) -> int:
        """The index of a place; of one that is not in the text, the nearest that is."""
        start = self._starts[min(max(line, 1), len(self._starts)) - 1]
        return min(self.index(self.units(start) + max(column, 1) - 1), len(self.text))

    def line(self, number: int) -> str:
        """A line without its end. Very many may ask for the same one, and it may be very long."""
        if number not in self._lines:
            start = self._starts[number - 1]
            end = self._starts[number] if number < len(self._starts) else len(self.text)
            self._lines[number] = self.text[start:end].rstrip("\n\r\u2028\u2029")
        return self._lines[number]
