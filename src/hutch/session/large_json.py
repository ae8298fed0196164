"""Decodes and encodes large JSON texts in pieces, between which other tasks run.

msgspec decodes a text in one call and holds Python's lock meanwhile. tests/session/test_large_json.py has
texts of 1 to 10 MB that stall the event loop for 0.1 to 2.5 s if they are decoded in one call.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

from hutch.session.json_value import (
    MAX_DEPTH,
    SHORT_TEXT_BYTES,
    ExcessiveJson,
    NotJsonSafe,
    decode_bounded,
    decode_value,
    encode_decoded_value,
    encode_value,
)
from hutch.strict_json import MAX_VALUES, ExcessCounter, slices
from hutch.tasks import TimeSlices

LARGE_TEXT_BYTES = 64 * 1024
"""Longer texts are decoded in pieces."""
_PIECE_BYTES = 32 * 1024
_STRING_BYTES = 32 * 1024
"""Longer strings are decoded in parts of this size. The size must be at least 16, because a part does not
split escapes.
"""
_MAX_PIECE_BYTES = 4 * 1024 * 1024
"""Maximum length of a piece without a comma. Pieces of valid texts are shorter: the longest one consists of
nested objects with one key each, of up to _STRING_BYTES.
"""
_MAX_SECONDS = 0.005
_MAX_SEARCHED = 10_000
"""Maximum number of values that `_has_many_chars` examines."""
_MAX_ENCODED_CHARS = 128 * 1024
"""A value whose strings have more characters in total is encoded in pieces. Encoding a MiB of quotes takes 5
to 11 ms.
"""
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SPACE = b" \t\r\n"


class DuplicateKey(NotJsonSafe):
    """An object has a key twice."""


async def decode_large_value(text: bytes, max_values: int | None = None) -> Any:
    """Like `decode_value`, but other tasks run meanwhile. `max_values` limits the number of values in a text
    that is longer than LARGE_TEXT_BYTES. A shorter text cannot have many values.

    Raises DuplicateKey if the text is longer than LARGE_TEXT_BYTES and an object has a key twice.
    """
    if len(text) <= LARGE_TEXT_BYTES:
        return decode_value(text)
    if max_values is None:
        max_values = MAX_VALUES if len(text) > SHORT_TEXT_BYTES else SHORT_TEXT_BYTES
    decoding = _decode_pieces(text, max_values)
    began = time.perf_counter()
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            return end.value
        if time.perf_counter() - began > _MAX_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def encode_large_value(value: Any) -> bytes:
    """Like `encode_decoded_value`, but other tasks run while it encodes many characters. Encoding 8 MB of
    quotes in one call takes 40 to 90 ms.
    """
    if not _has_many_chars(value):
        return encode_decoded_value(value)
    parts: list[bytes] = []
    slices = TimeSlices()
    for part in _encode_pieces(value):
        parts.append(part)
        await slices.pause()
    return b"".join(parts)


async def encode_large_result(value: Any) -> bytes:
    """Like `encode_value`, but other tasks run while it encodes many characters. Raises NotJsonSafe if
    `value`, which a tool has returned, is not JSON-safe.
    """
    if type(value) not in (str, list, dict) or not _has_many_chars(value):
        return encode_value(value)
    parts: list[bytes] = []
    time_slices = TimeSlices()
    counter = ExcessCounter(MAX_DEPTH, sys.maxsize)
    try:
        for part in _encode_pieces(value, encode_value):
            parts.append(part)
            if counter.add(part) is not None:
                raise NotJsonSafe
            await time_slices.pause()
    except (NotJsonSafe, RecursionError):
        # Encode again with `encode_value`, which raises an error with the path of the invalid part.
        return encode_value(value)
    return b"".join(parts)


def has_more_values(value: Any, max_values: int) -> bool:
    """Returns True if a decoded value contains more than `max_values` values, not counting itself."""
    rest, count = [value], 0
    while rest and count <= max_values:
        value = rest.pop()
        if isinstance(value, (dict, list)):
            count += len(value)
            rest.extend(value.values() if isinstance(value, dict) else value)
    return count > max_values


def _has_many_chars(value: Any) -> bool:
    """Returns True if the strings among the first _MAX_SEARCHED values have more than _MAX_ENCODED_CHARS
    characters in total.
    """
    rest, left, chars = [value], _MAX_SEARCHED, 0
    while rest and left > 0 and chars <= _MAX_ENCODED_CHARS:
        value = rest.pop()
        left -= 1
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, dict):
            rest.extend(islice(value, left))
            rest.extend(islice(value.values(), left))
        elif isinstance(value, list):
            rest.extend(islice(value, left))
    return chars > _MAX_ENCODED_CHARS


def _encode_pieces(value: Any, encode: Callable[[Any], bytes] = encode_decoded_value) -> Iterator[bytes]:
    """Encodes strings, lists and dicts with string keys in pieces, and all other values with `encode`."""
    kind = type(value)
    if kind not in (str, list, dict) or not _has_many_chars(value):
        yield encode(value)
    elif kind is str:
        yield b'"'
        for start in range(0, len(value), _STRING_BYTES):
            yield encode(value[start : start + _STRING_BYTES])[1:-1]
        yield b'"'
    elif kind is list:
        yield b"["
        yield from _encode_items(value, encode)
        yield b"]"
    elif any(type(key) is not str for key in value):
        yield encode(value)
    else:
        for number, (key, item) in enumerate(value.items()):
            yield b"," if number else b"{"
            yield from _encode_pieces(key, encode)
            yield b":"
            yield from _encode_pieces(item, encode)
        yield b"}"


def _encode_items(items: list[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yields the items of an array without its brackets."""
    if len(items) == 1:
        yield from _encode_pieces(items[0], encode)
    elif _has_many_chars(items):
        middle = len(items) // 2
        yield from _encode_items(items[:middle], encode)
        yield b","
        yield from _encode_items(items[middle:], encode)
    else:
        yield encode(items)[1:-1]


def _decode_pieces(text: bytes, max_values: int) -> Generator[None, None, Any]:
    """Splits the text at commas into pieces, and makes each piece a complete JSON text: prepends the brackets
    that are open at the start of the piece, and closes the brackets that are open at its end. Adds the
    decoded values of each piece to the values of the previous pieces.
    """
    tree = _Tree()
    piece = _Piece()
    start = offset = values = is_inside = opened = 0
    for part in slices(text, _PIECE_BYTES):
        masked = part.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in part else part
        # Escaped quotes are masked, so each remaining quote starts or ends a string.
        pieces = masked.split(b'"')
        if is_inside and len(pieces) > 1 and (closed := offset + len(pieces[0])) - opened > _STRING_BYTES:
            string = yield from _decode_string(text, opened + 1, closed)
            piece.long_strings.append((opened, closed + 1, string))
        at = _last_comma(pieces, is_inside)
        if at is None:
            piece.scan(b"".join(pieces[is_inside::2]))
        else:
            number, comma = at
            before, after = pieces[number][:comma], pieces[number][comma + 1 :]
            piece.scan(b"".join([*pieces[is_inside:number:2], before]))
            end = offset + sum(map(len, pieces[:number])) + number + comma
            tree.add(text, start, end, piece)
            start = end + 1
            values += 1 + piece.values
            piece = _Piece(piece.stack)
            piece.scan(b"".join([after, *pieces[number + 2 :: 2]]))
        if values + piece.values > max_values:
            raise ExcessiveJson(f"$ has more than {max_values} values")
        is_inside ^= (len(pieces) - 1) & 1
        offset += len(part)
        if is_inside and len(pieces) > 1:
            opened = offset - len(pieces[-1]) - 1
        yield
    if is_inside:
        raise NotJsonSafe("malformed JSON: a string has no end")
    tree.add(text, start, len(text), piece, is_last=True)
    return tree.root


def _decode_string(text: bytes, start: int, end: int) -> Generator[None, None, str]:
    """Decodes a long string in parts. Its contents, without the quotes, are `text[start:end]`."""
    parts = []
    while start < end:
        cut = min(start + _STRING_BYTES, end)
        if cut < end:
            cut = _string_cut(text, start, cut)
        parts.append(decode_bounded(b'"%b"' % text[start:cut]))
        start = cut
        yield
    return "".join(parts)


def _string_cut(text: bytes, start: int, cut: int) -> int:
    """Returns the last position up to `cut` that is neither inside a character nor inside an escape. `start`
    must not be inside one either.
    """
    for _ in range(3):
        # Skip the continuation bytes of a UTF-8 character.
        cut -= text[cut] & 0xC0 == 0x80
    escape = text.rfind(b"\\", cut - 5, cut)
    if escape >= 0 and _starts_escape(text, start, escape):
        length = 6 if text[escape + 1 : escape + 2] == b"u" else 2
        cut = escape if escape + length > cut else cut
    if _HIGH_SURROGATE.fullmatch(text, cut - 6, cut) and _starts_escape(text, start, cut - 6):
        cut -= 6
    return cut


def _starts_escape(text: bytes, start: int, at: int) -> bool:
    """Returns True if the backslash at this position is not escaped itself."""
    before = text[start:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def _last_comma(pieces: list[bytes], is_inside: int) -> tuple[int, int] | None:
    """Finds the last comma outside of strings. Returns the index of the piece that contains it, and its
    position in that piece.
    """
    last = len(pieces) - 1
    for number in range(last - (last + is_inside) % 2, -1, -2):
        comma = pieces[number].rfind(b",")
        if comma >= 0:
            return number, comma
    return None


class _Piece:
    """Structure of one piece of the text."""

    def __init__(self, stack: bytes | bytearray = b"") -> None:
        self.before = bytes(stack)
        """Brackets that are open at the start."""
        self.stack = bytearray(stack)
        """Brackets that are open at the end."""
        self.lowest = len(stack)
        """Number of brackets that stay open from the start of the piece to its end."""
        self.keys = self.values = 0
        self.long_strings: list[tuple[int, int, str]] = []
        """Start, end and value of each long string."""

    def scan(self, outside: bytes) -> None:
        """Reads the characters outside of strings. Raises NotJsonSafe if the brackets nest too deeply."""
        brackets = outside.translate(None, _NOT_BRACKETS)
        stack, lowest = self.stack, self.lowest
        for bracket in brackets:
            if bracket in b"[{":
                stack.append(bracket)
                if len(stack) > MAX_DEPTH:
                    raise ExcessiveJson(f"$ is nested deeper than {MAX_DEPTH} levels")
            elif stack:
                stack.pop()
                lowest = min(lowest, len(stack))
            else:
                raise NotJsonSafe("malformed JSON: a bracket closes nothing")
        self.lowest = lowest
        self.keys += outside.count(b":")
        self.values += outside.count(b",") + brackets.count(b"[") + brackets.count(b"{")


class _Tree:
    """The part of the value that is decoded so far."""

    def __init__(self) -> None:
        self.root: Any = None
        self._open: list[Any] = []
        """Arrays and objects that are not complete, outermost first. The next piece continues them."""
        # Key under which a piece continues the value of the previous piece. The key is random, so that no
        # text contains it.
        self._key = os.urandom(16).hex()

    def add(self, text: bytes, start: int, end: int, piece: _Piece, *, is_last: bool = False) -> None:
        """Decodes the piece `text[start:end]` and adds its values. Raises NotJsonSafe."""
        strings: dict[str, str] = {}
        parts: list[bytes] = []
        for opened, closed, string in piece.long_strings:
            name = f"{self._key}{opened}"
            strings[name] = string
            parts += (text[start:opened], f'"{name}"'.encode())
            start = closed
        # Strip spaces before checking the length, because a client may pad a body with any number of them.
        short = b"".join((*parts, text[start:end])).strip(_SPACE)
        if len(short) > _MAX_PIECE_BYTES:
            raise NotJsonSafe("$ has a number or spaces that are too long")
        # Refuse a piece that lacks a value next to the comma at which the text was split. The piece itself is
        # valid JSON, because the comma is not part of it.
        if not short or (self._open and short[0] in b"]}") or (not is_last and short[-1] in b"[{"):
            raise NotJsonSafe("malformed JSON: a comma has no value beside it")
        if not is_last and not piece.stack:
            raise NotJsonSafe("malformed JSON: the text continues after its value")
        closing = b"" if is_last else bytes(piece.stack[::-1]).translate(_CLOSING)
        value = decode_bounded(self._opening(piece.before) + short + closing)
        if strings:
            value = _restore(value, strings)
        # Number of keys that the value has if no key occurs twice: the keys in the piece, and one key that
        # `_opening` adds for each continued object except the innermost.
        keys = piece.keys + piece.before[:-1].count(b"{")
        if keys > 1 and _count_keys(value) != keys:
            raise DuplicateKey("$ has an object with a key that occurs twice")
        if self._open:
            self._merge(value)
        else:
            self.root = value
        del self._open[piece.lowest :]
        for _ in range(piece.lowest, len(piece.stack)):
            self._open.append(_last_child(self._open[-1]) if self._open else self.root)

    def _opening(self, stack: bytes) -> bytes:
        with_key = b'{"%s":' % self._key.encode()
        return b"".join(with_key if bracket in b"{" else b"[" for bracket in stack[:-1]) + stack[-1:]

    def _merge(self, value: Any) -> None:
        for level, target in enumerate(self._open):
            is_innermost = level == len(self._open) - 1
            if isinstance(target, list):
                target.extend(value if is_innermost else value[1:])
                value = None if is_innermost else value[0]
            else:
                continued = None if is_innermost else value.pop(self._key)
                size = len(target) + len(value)
                target.update(value)
                if len(target) != size:
                    raise DuplicateKey("$ has an object with a key that occurs twice")
                value = continued


_CLOSING = bytes.maketrans(b"[{", b"]}")


def _last_child(container: Any) -> Any:
    return container[-1] if isinstance(container, list) else next(reversed(container.values()))


def _restore(value: Any, strings: dict[str, str]) -> Any:
    """Replaces the placeholders of long strings by the strings themselves."""
    if isinstance(value, str):
        return strings.get(value, value)
    if isinstance(value, list):
        return [_restore(item, strings) for item in value]
    if isinstance(value, dict):
        return {strings.get(key, key): _restore(item, strings) for key, item in value.items()}
    return value


def _count_keys(value: Any) -> int:
    count, rest = 0, [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            count += len(value)
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count
