"""Parses JSON strictly: finite numbers only, and bounds on depth and on the number of values. Also finds keys
that occur twice in an object.

Imports only modules that load quickly.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal

MAX_VALUES = 250_000
"""Maximum number of values in a JSON text that a guest, a client or an upstream controls. Decoding a million
blocks the event loop for up to 300 ms.
"""


def parse_json(text: str | bytes) -> Any:
    """Parses JSON. Raises ValueError if the text is malformed, is not UTF-8, or contains NaN, Infinity or a
    number out of range. Raises RecursionError if it is nested too deeply.
    """
    decoded = text if isinstance(text, str) else text.decode()
    return json.loads(decoded, parse_constant=_refuse_constant, parse_float=finite_float)


def find_excess(text: bytes, max_depth: int, max_values: int) -> Literal["depth", "values"] | None:
    """Returns the limit that a JSON text exceeds: it nests arrays and objects more than `max_depth` levels
    deep, or has more than `max_values` values after the first. Returns None if it is within both limits.

    Does not parse the text. Takes time linear in its length, and little memory. Every text that a guest, a
    client or an upstream controls is checked with this function before it is decoded. In malformed text, only
    the part before the error is counted correctly.
    """
    if len(text) <= max_depth and len(text) <= max_values:
        return None
    if len(text) <= _SLICE:
        opened = text.count(b"[") + text.count(b"{")
        if opened <= max_depth and (len(text) <= max_values or opened + text.count(b",") <= max_values):
            return None
    counter = ExcessCounter(max_depth, max_values)
    return next((excess for part in slices(text, _SLICE) if (excess := counter.add(part)) is not None), None)


class ExcessCounter:
    """Like `find_excess`, for a JSON text that arrives in parts."""

    def __init__(self, max_depth: int, max_values: int) -> None:
        self._max_depth, self._max_values = max_depth, max_values
        self._depth = self._values = self._is_inside = 0
        self._escape = b""
        """Backslash at the end of the last part whose escaped character is in the next part."""

    def add(self, part: bytes) -> Literal["depth", "values"] | None:
        """Counts the next part of the text. Returns the limit that is exceeded, or None."""
        part, self._escape = self._escape + part, b""
        if b"\\" in part:
            if part.endswith(b"\\") and (len(part) - len(part.rstrip(b"\\"))) % 2:
                part, self._escape = part[:-1], b"\\"
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Escaped quotes are removed, so each quote starts or ends a string. Drop adjacent quotes, which do
        # not change the count.
        marks = part.translate(_BRACES_TO_BRACKETS, _NOT_MARKS).replace(b'""', b"").split(b'"')
        outside = b"".join(marks[self._is_inside :: 2])
        self._is_inside ^= (len(marks) - 1) & 1
        brackets = outside.translate(None, b",")
        if _nests_deeper(brackets, self._depth, self._max_depth):
            return "depth"
        opened = brackets.count(b"[")
        self._depth += 2 * opened - len(brackets)
        self._values += len(outside) - len(brackets) + opened
        return "values" if self._values > self._max_values else None


def is_too_deep(text: bytes, max_depth: int) -> bool:
    """Returns True if a JSON text nests arrays and objects more than `max_depth` levels deep."""
    return find_excess(text, max_depth, sys.maxsize) == "depth"


def find_duplicate_key(text: bytes) -> str | None:
    """Returns the first key that occurs twice in one object of a valid JSON text, or None.

    Takes linear time, but about a second for ten megabytes. Other threads can run meanwhile.
    """
    objects: list[set[bytes]] = []
    last = b""
    for match in _TOKENS.finditer(text):
        token = match[0]
        if token == b":":
            key = str(json.loads(last)).encode(errors="surrogatepass") if b"\\" in last else last[1:-1]
            if key in objects[-1]:
                return key.decode(errors="replace")
            objects[-1].add(key)
        elif token == b"{":
            objects.append(set())
        elif token == b"}":
            objects.pop()
        else:
            last = token
    return None


# The quantifiers are possessive, because backtracking would need memory for each repetition.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}:]')
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'",[]{}')
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_DEPTH_CHANGE = [{ord("["): 1, ord("]"): -1}.get(byte, 0) for byte in range(256)]
_SLICE = 1024 * 1024
_CHUNK = 64


def slices(text: bytes, size: int) -> Iterator[bytes]:
    """Yields a JSON text in slices that do not split escapes."""
    start = 0
    while start < len(text):
        part = text[start : start + size]
        if part.endswith(b"\\") and (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = text[start : start + size + 1]
        yield part
        start += len(part)


def _nests_deeper(brackets: bytes, depth: int, max_depth: int) -> bool:
    for start in range(0, len(brackets), _CHUNK):
        chunk = brackets[start : start + _CHUNK]
        opened = chunk.count(b"[")
        # Examine a chunk byte by byte only if it opens enough brackets to exceed the limit, because few
        # chunks do.
        if (
            depth + opened > max_depth
            and depth + max(accumulate(map(_DEPTH_CHANGE.__getitem__, chunk))) > max_depth
        ):
            return True
        depth += 2 * opened - len(chunk)
    return False


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def finite_float(text: str) -> float:
    """Raises ValueError if the number is out of range."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number
