"""Reads the binary syntax trees of the native compiler.

A node has 28 bytes: kind, begin, end, next sibling, parent, data, flags. Nodes are in depth-first order, so
the first child of a node follows the node directly. A list of nodes is a node, too. The numbers of the kinds
belong to the pinned compiler version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hutch.protocols.toolscript.checker.source_text import (
    Outline,
    SourceText,
    Specifier,
    Statement,
    StatementKind,
)

FORMAT = 5
_LIST = 0xFFFF_FFFF
_SOURCE_FILE = 1
_WORDS_PER_NODE = 7
_KIND, _BEGIN, _END, _NEXT, _PARENT, _DATA = range(6)
_DATA_MASK = 0x00FF_FFFF

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
_MODULE_REFERENCES = _IMPORTS | _EXPORTS | {284}  # `require("…")` in `import a = require("…")`
# Methods, static blocks, constructors, accessors, functions, arrow functions and namespace bodies.
_FUNCTIONS = frozenset({175, 176, 177, 178, 179, 219, 220, 263, 269})


class SyntaxTree:
    """A syntax tree. A node is identified by its index."""

    def __init__(self, data: bytes, text: SourceText) -> None:
        if data[3] != FORMAT:
            raise ValueError(f"a syntax tree of format {data[3]}")
        self._text = text
        self._raw = data
        self._string_offsets, self._strings, self._extended, _, nodes = struct.unpack_from("<5I", data, 24)
        words = memoryview(data)[nodes:].cast("I")
        self._kind = words[_KIND::_WORDS_PER_NODE].tolist()
        self._begin = words[_BEGIN::_WORDS_PER_NODE].tolist()
        self._end = words[_END::_WORDS_PER_NODE].tolist()
        self._next = words[_NEXT::_WORDS_PER_NODE].tolist()
        self._parent = words[_PARENT::_WORDS_PER_NODE].tolist()
        self._data = words[_DATA::_WORDS_PER_NODE].tolist()

    def outline(self) -> Outline:
        return Outline(
            tuple(self._statement(node) for node in self._children(_SOURCE_FILE + 1)),
            tuple(self._specifiers()),
            tuple(self._start(node) for node in self._all(_RETURN) if not self._in_function(node)),
        )

    def innermost_call(self, index: int) -> tuple[int, int, int] | None:
        """Finds the innermost call around a position. Returns the start and the end of the callee, and the
        start of the last name in the callee. Returns None if there is no call.
        """
        offset = self._text.units(index)
        calls = [node for node in self._all(_CALL) if self._begin[node] <= offset <= self._end[node]]
        if not calls:
            return None
        # In depth-first order, the innermost call is the last one.
        callee = calls[-1] + 1
        # The nodes of the callee end before its next sibling, which is the argument list.
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
        """Yields the elements of a list node. Yields nothing for other nodes."""
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
        """Returns True if the statement is exported. Its first child is the list of modifiers."""
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
        """Returns True if the string is imported dynamically, False if it is imported statically, and None if
        it is not imported.
        """
        parent = self._parent[node]
        if self._kind[parent] in _MODULE_REFERENCES:
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
        (number,) = struct.unpack_from("<I", self._raw, self._extended + (self._data[node] & _DATA_MASK))
        start, end = struct.unpack_from("<2I", self._raw, self._string_offsets + 4 * number)
        return self._raw[self._strings + start : self._strings + end].decode(errors="replace")
