"""Finds all occurrences of many byte patterns in time that is linear in the data, for any patterns and data.

An Aho-Corasick automaton visits every byte once. In Python that takes about 0.15 µs per byte, so a filter
first selects the ranges of the data that can contain an occurrence. Ordinary data has no such ranges.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Literal

BlockFormat = Literal["Q", "I"]
Span = tuple[int, int]
"""Start and end of a range."""

# Up to this number of patterns, searching for each of them is faster than looking up every block of the data.
MAX_SEARCHED_ANCHORS = 128
# Only this many bytes at the end of a long pattern are searched for, because preparing a search takes time
# for every byte of the pattern.
ANCHOR_BYTES = 256
# Patterns with escapes contain one of these bytes. Most data contains none, and searching for one byte is
# much faster than searching for every pattern.
_MARKERS = (b"%", b"\\", b"&", b"\0")
# Sizes of the blocks that are looked up, with the format of an integer of that size.
_BLOCKS: tuple[tuple[int, BlockFormat], ...] = ((8, "Q"), (4, "I"))

ROOT = 0
"""Node of the automaton at which no pattern has started."""
_UNKNOWN = -1
_SEPARATOR = 10


class PatternSearch:
    """Searches for a fixed set of patterns. Every pattern has from 4 to 65,535 bytes."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = sorted(set(patterns))
        self.longest = max(map(len, self._patterns), default=0)
        self._filter = _Filter(self._patterns, self.longest)
        self._alphabet = _distinct_bytes(b"".join(self._patterns))

    def __len__(self) -> int:
        return len(self._patterns)

    @cached_property
    def automaton(self) -> Automaton:
        # Create the automaton only when it is needed, because it takes seven times the memory of the
        # patterns.
        return Automaton(self._patterns)

    def may_contain(self, data: bytes) -> bool:
        """Returns False only if `data` contains no pattern. Uses only the filter, which is much faster than
        the automaton of `find`.
        """
        return bool(self._filter.candidates(data))

    def find(self, data: bytes, offset: int = 0) -> deque[Span]:
        """Returns the ranges that are covered by occurrences, in order. Overlapping occurrences are one
        range. `offset` is added to all positions.
        """
        spans: deque[Span] = deque()
        for start, end in self._filter.candidates(data):
            self.automaton.scan(data, start, end, ROOT, spans, offset)
        return spans

    def end_node(self, data: bytes) -> int:
        """Returns the node of the automaton after all of `data` was read."""
        window = data[max(0, len(data) - self.longest + 1) :]
        # Skip bytes that cannot be part of a pattern, because the automaton is slower.
        start = len(window.rstrip(self._alphabet))
        if start == len(window):
            return ROOT
        return self.automaton.scan(window, start, len(window), ROOT, deque())


class Automaton:
    """Aho-Corasick automaton that computes its links when it needs them.

    The sorted patterns are joined to one text. A node is a position in this text, and stands for the part of
    a pattern before that position. If several patterns start with the same bytes, the nodes of these bytes
    belong to the first of these patterns, and the other patterns branch off. The link of a node leads to the
    node that stands for its longest proper suffix.
    """

    def __init__(self, patterns: list[bytes]) -> None:
        """Creates an automaton. `patterns` are sorted and distinct, and not empty."""
        self._text = b"\n".join(patterns) + b"\n"
        self._starts: list[int] = []
        # Length of the longest pattern that ends at a node, or 0.
        self._lengths = array("H", bytes(2 * len(self._text)))
        start = 0
        for pattern in patterns:
            self._starts.append(start)
            start += len(pattern)
            self._lengths[start] = len(pattern)
            start += 1
        self._branches = self._find_branches(patterns)
        self._links = array("i", [_UNKNOWN]) * len(self._text)
        self._first = [self._child(ROOT, byte) for byte in range(256)]
        """Nodes that follow the root."""
        for node in (ROOT, *self._first):
            self._links[node] = ROOT

    def depth(self, node: int) -> int:
        """Returns the length of the text that a node stands for."""
        return node - self._starts[bisect_right(self._starts, node) - 1]

    def scan(self, data: bytes, start: int, end: int, node: int, spans: deque[Span], offset: int = 0) -> int:
        """Reads `data[start:end]`, starting at `node`, and returns the node at the end. Adds the ranges of
        all occurrences to `spans`, with `offset` added to their positions.
        """
        text, links, lengths, branches = self._text, self._links, self._lengths, self._branches
        first = self._first
        at, covered_from, covered_to = start + offset, 0, 0
        for byte in data[start:end]:
            at += 1
            child = ROOT
            # This loop contains the code of `_child`, because a call would take longer.
            while node:
                # Do not match the separator that follows the end of a pattern, because it is not part of the
                # pattern.
                if text[node] == byte and (byte != _SEPARATOR or not self._is_end(node)):
                    child = node + 1
                    break
                if node in branches and byte in branches[node]:
                    child = branches[node][byte]
                    break
                node = links[node]
            else:
                node = first[byte]
                continue
            if links[child] == _UNKNOWN:
                if links[node] == ROOT:
                    links[child] = first[byte]
                else:
                    self._link(child, node, byte)
            node = child
            if length := lengths[node]:
                if at - length >= covered_to:
                    if covered_to:
                        add_span(spans, covered_from, covered_to)
                    covered_from = at - length
                elif at - length < covered_from:
                    covered_from = at - length
                covered_to = at
        if covered_to:
            add_span(spans, covered_from, covered_to)
        # A complete pattern that is not the start of a longer one cannot continue, so continue with its
        # suffix.
        while text[node] == _SEPARATOR and self._is_end(node) and node not in branches:
            node = links[node]
        return node

    def _link(self, child: int, parent: int, byte: int) -> None:
        """Computes the link of a node, and of the nodes that its link leads to."""
        links, lengths = self._links, self._lengths
        linked = []
        while links[child] == _UNKNOWN:
            linked.append(child)
            suffix = ROOT
            while parent != ROOT and suffix == ROOT:
                parent = links[parent]
                suffix = self._child(parent, byte)
            links[child] = suffix
            child = suffix
        for node in reversed(linked):
            # If a pattern ends at this node, it is longer than any pattern that ends at the node of its
            # suffix, so its length is kept.
            lengths[node] = lengths[node] or lengths[links[node]]

    def _child(self, node: int, byte: int) -> int:
        if self._text[node] == byte and (byte != _SEPARATOR or not self._is_end(node)):
            return node + 1
        children = self._branches.get(node)
        return ROOT if children is None else children.get(byte, ROOT)

    def _is_end(self, node: int) -> bool:
        """Returns True if a pattern ends at the node, so that a separator follows."""
        return self._lengths[node] == self.depth(node) > 0

    def _find_branches(self, patterns: list[bytes]) -> dict[int, dict[int, int]]:
        """Returns the nodes where patterns branch off, with the next node for every byte."""
        branches: dict[int, dict[int, int]] = {}
        # Stack of (depth, start). The nodes deeper than `depth` on the current path belong to the pattern at
        # `start`.
        owners = [(-1, 0)]
        for (one, other), start in zip(pairwise(patterns), self._starts[1:], strict=True):
            depth = common_prefix(one, other)
            while owners[-1][0] >= depth:
                owners.pop()
            branches.setdefault(owners[-1][1] + depth, {})[other[depth]] = start + depth + 1
            owners.append((depth, start))
        return branches


class _Filter:
    """Selects ranges of data that contain every occurrence of the patterns.

    If there are few patterns, searches for the suffix of each pattern. Otherwise divides the data into blocks
    of `size` bytes and looks up each block in a set of blocks from the patterns. This finds every occurrence,
    because the last `2 * size - 1` bytes of an occurrence contain a whole block of the data, wherever the
    occurrence starts.
    """

    def __init__(self, patterns: list[bytes], longest: int) -> None:
        self._longest = longest
        self._blocks: list[tuple[int, BlockFormat, set[int]]] = []
        self._anchors: list[tuple[bytes, list[bytes]]] = []
        anchors: dict[bytes, None] = {}
        for size, block_format in _BLOCKS:
            chosen = [pattern for pattern in patterns if len(pattern) >= 2 * size - 1]
            if len(chosen) > MAX_SEARCHED_ANCHORS:
                self._blocks.append((size, block_format, set(_blocks_at_end(chosen, size))))
            else:
                anchors |= dict.fromkeys(pattern[-ANCHOR_BYTES:] for pattern in chosen)
            patterns = [pattern for pattern in patterns if len(pattern) < 2 * size - 1]
        anchors |= dict.fromkeys(patterns)
        by_marker: dict[bytes, list[bytes]] = {}
        for anchor in anchors:
            marker = next((byte for byte in _MARKERS if byte in anchor), b"")
            by_marker.setdefault(marker, []).append(anchor)
        self._anchors = list(by_marker.items())

    def candidates(self, data: bytes) -> list[Span]:
        """Returns the ranges in order and without overlaps."""
        hits: list[int] = []
        for marker, anchors in self._anchors:
            if marker in data:
                for anchor in anchors:
                    at = data.find(anchor)
                    while at >= 0:
                        hits.append(at)
                        # Skip occurrences that are closer than this, because the range around this one covers
                        # them.
                        at = data.find(anchor, at + self._longest)
        for size, block_format, known in self._blocks:
            blocks = memoryview(data)[: len(data) // size * size].cast(block_format)
            if not known.isdisjoint(blocks):
                hits += [size * index for index, block in enumerate(blocks) if block in known]
        return self._merged(sorted(hits), len(data)) if hits else []

    def _merged(self, hits: list[int], size: int) -> list[Span]:
        spans: deque[Span] = deque()
        for hit in hits:
            end = hit + self._longest + ANCHOR_BYTES
            add_span(spans, max(0, hit - self._longest), min(size, end))
        return list(spans)


def _blocks_at_end(patterns: Iterable[bytes], size: int) -> Iterator[int]:
    """Yields the blocks at the last `size` offsets of each pattern, because an occurrence can lie at any
    offset relative to the blocks of the data.
    """
    for pattern in patterns:
        for end in range(len(pattern) - size + 1, len(pattern) + 1):
            yield int.from_bytes(pattern[end - size : end], sys.byteorder)


def add_span(spans: deque[Span], start: int, end: int) -> None:
    """Adds a range that ends after all earlier ranges, and merges it with the ranges that it overlaps."""
    while spans and start < spans[-1][1]:
        start = min(start, spans.pop()[0])
    spans.append((start, end))


def common_prefix(one: bytes, other: bytes) -> int:
    """Returns the length of the common prefix."""
    shorter = min(len(one), len(other))
    low, high = 0, 8
    while high < shorter and one[low:high] == other[low:high]:
        low, high = high, 2 * high
    high = min(high, shorter)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _distinct_bytes(data: bytes) -> bytes:
    found = b""
    while data:
        # Building a set from all of the data at once would take 20 times as long.
        more = bytes(set(data[:4096]))
        found += more
        data = data.translate(None, more)
    return found
