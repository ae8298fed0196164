"""The compiler's syntax tree of a file, as its protocol encodes it, and what is to be known from it.

Nodes are 28 bytes each, in the order of a walk: kind, begin, end, next sibling, parent, data, flags. A node's
first child follows it; lists of nodes are nodes too. The numbers of kinds are those of the pinned version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hutch.doors.toolscript.outline import Outline, Specifier, Statement, StatementKind
from hutch.doors.toolscript.text import Text

FORMAT = 5
_LIST = 0xFFFF_FFFF
_SOURCE_FILE = 1
_WORDS = 7
_KIND, _BEGIN, _END, _NEXT, _PARENT, _DATA = range(6)
_REST = 0x00FF_FFFF

_STRING_LITERAL = 10
_TEMPLATE_WITHOUT_PARTS = 14
_EXPORT_KEYWORD = 94
_IMPORT_KEYWORD = 101
_LITERAL_TYPE = 202
_IMPORT_TYPE = 206
_CALL = 214
_RETURN = 254
_IMPORTS = frozenset({272, 273})  # `import a = …`, `import … from …`
_EXPORTS = frozenset(
    {271, 278, 279}
)  # `export as namespace`, `export default` and `export =`, `export { … }`
_NAMING = _IMPORTS | _EXPORTS | {284}  # `require("…")` in `import a = require("…")`
# Methods, static blocks, constructors, accessors, functions, arrow functions; also the body of a namespace.
_FUNCTIONS = frozenset({175, 176, 177, 178, 179, 219, 220, 263, 269})


class Tree:
    """A syntax tree. Nodes are known by their numbers."""

    def __init__(self, data: bytes, text: Text) -> None:
        if data[3] != FORMAT:
            raise ValueError(f"a syntax tree of format {data[3]}")
        self._text = text
        self._raw = data
        self._string_offsets, self._strings, self._extended, _, nodes = struct.unpack_from("<5I", data, 24)
        words = memoryview(data)[nodes:].cast("I")
        self._kind = words[_KIND::_WORDS].tolist()
        self._begin = words[_BEGIN::_WORDS].tolist()
        self._end = words[_END::_WORDS].tolist()
        self._next = words[_NEXT::_WORDS].tolist()
        self._parent = words[_PARENT::_WORDS].tolist()
        self._data = words[_DATA::_WORDS].tolist()

    def outline(self) -> Outline:
        return Outline(
            tuple(self._statement(node) for node in self._children(_SOURCE_FILE + 1)),
            tuple(self._specifiers()),
            tuple(self._start(node) for node in self._all(_RETURN) if not self._in_function(node)),
        )

    def called(self, index: int) -> tuple[int, int, int] | None:
        """What is called in the innermost call that a place is in: its start and end, and its last name's."""
        place = self._text.units(index)
        calls = [node for node in self._all(_CALL) if self._begin[node] <= place <= self._end[node]]
        if not calls:
            return None
        # In the order of a walk, the innermost is the last.
        callee = calls[-1] + 1
        # The callee's own nodes end where its sibling, the list of arguments, begins.
        last = self._next[callee] - 1
        start, end = self._start(callee), self._text.index(self._end[callee])
        return start, end, self._start(last)

    # --- nodes ---

    def _all(self, kind: int) -> Iterator[int]:
        node = -1
        try:
            while True:
                node = self._kind.index(kind, node + 1)
                yield node
        except ValueError:
            return

    def _children(self, parent: int) -> Iterator[int]:
        """Those of a list, if it is one."""
        node = parent + 1
        if self._kind[parent] == _LIST and node < len(self._parent) and self._parent[node] == parent:
            while node:
                yield node
                node = self._next[node]

    def _start(self, node: int) -> int:
        return self._text.after_trivia(self._text.index(self._begin[node]))

    def _statement(self, node: int) -> Statement:
        kind: StatementKind = "other"
        if self._kind[node] in _EXPORTS or self._is_exported(node):
            kind = "export"
        elif self._kind[node] in _IMPORTS:
            kind = "import"
        return Statement(kind, self._start(node), self._text.index(self._end[node]))

    def _is_exported(self, node: int) -> bool:
        """Modifiers come first."""
        return any(self._kind[child] == _EXPORT_KEYWORD for child in self._children(node + 1))

    def _in_function(self, node: int) -> bool:
        while node != _SOURCE_FILE:
            node = self._parent[node]
            if self._kind[node] in _FUNCTIONS:
                return True
        return False

    # --- imports ---

    def _specifiers(self) -> Iterator[Specifier]:
        for kind in (_STRING_LITERAL, _TEMPLATE_WITHOUT_PARTS):
            for node in self._all(kind):
                dynamic = self._is_import(node)
                if dynamic is not None:
                    end = self._text.index(self._end[node])
                    yield Specifier(self._string(node), self._start(node), end, dynamic)

    def _is_import(self, node: int) -> bool | None:
        """Whether what a string names is imported dynamically, or None if it is not imported."""
        parent = self._parent[node]
        if self._kind[parent] in _NAMING:
            return False
        if self._kind[parent] == _LITERAL_TYPE:
            # `import("…").Type`
            return False if self._kind[self._parent[parent]] == _IMPORT_TYPE else None
        call = self._parent[parent]
        first = parent + 1 == node and self._kind[parent] == _LIST
        return True if first and self._kind[call] == _CALL and self._calls_import(call) else None

    def _calls_import(self, call: int) -> bool:
        return bool(self._kind[call + 1] == _IMPORT_KEYWORD)

    def _string(self, node: int) -> str:
        (number,) = struct.unpack_from("<I", self._raw, self._extended + (self._data[node] & _REST))
        start, end = struct.unpack_from("<2I", self._raw, self._string_offsets + 4 * number)
        return self._raw[self._strings + start : self._strings + end].decode(errors="replace")
