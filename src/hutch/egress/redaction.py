"""Redacts secrets from responses, in plain text and in the encodings that servers commonly use.

Redaction is a safety net, not a boundary, because a server can always encode a secret in another way. The
boundary is that a secret is sent only to its own host.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import unquote

import msgspec

from hutch.egress.pattern_search import ROOT, PatternSearch, Span
from hutch.tasks import TimeSlices

MARK = "[redacted]"
# Secrets that are shorter than this are not redacted, because they occur in any text by chance.
MIN_SECRET = 4
# Percent-decoded secrets and the values of cookies are also redacted where they occur alone, unless they are
# shorter than this.
MIN_PART = 8
# Secrets that are shorter than this are not searched for in hexadecimal, Base64, UTF-16 and fully escaped
# forms.
MIN_FORM = 6
# Maximum number of parts to search for, and maximum number of parts that are also searched for in the rarest
# forms. Every form takes time and memory.
MAX_PARTS = 256
MAX_STRICT_PARTS = 8
# Longer parts are split into parts of at most this length. Data that may be the start of a part is held back,
# so this limit also bounds the data that is held back.
MAX_PART_CHARS = 1024
# Maximum number of redactors in the cache, and of characters in all their secrets. A character takes up to 1
# KiB of memory.
MAX_CACHED = 64
MAX_CACHED_CHARS = 256 * 1024
# The redactor of longer secrets is created in a thread. Creating one takes 0.4 s for 64 KiB.
MAX_QUICK_CHARS = 1024
# Number of bytes that are searched in one step. A byte takes up to 1.5 µs.
STEP_BYTES = 4 * 1024

_MARK = MARK.encode()
_SCHEME = re.compile(r"(?:bearer|basic|token|bot|key|apikey|api-key) +(\S.*)", re.I)
_COOKIES = re.compile(r"[^\s=;,]+=[^;]*(?:; *[^\s=;,]+=[^;]*)*;? *")
# Characters that most encoders leave unescaped.
_UNESCAPED = re.compile(r"[A-Za-z0-9_.-]*")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
# Ways in which encoders that escape every character except letters and digits write one byte.
_STRICT_FORMATS = (
    *("%{:02x}", "%{:02X}", "\\x{:02x}", "\\x{:02X}", "\\u{:04x}", "\\u{:04X}"),
    *("&#x{:x};", "&#x{:X};", "&#{};"),
)


def _table(escape: str, kept: frozenset[str]) -> list[bytes]:
    """Returns the encoded form of every byte. The characters in `kept` are not escaped."""
    return [
        (chr(code) if chr(code) in kept else escape.format(code)).encode("latin-1") for code in range(256)
    ]


_STRICT_TABLES = [_table(escape, _PLAIN) for escape in _STRICT_FORMATS]
_URL_TABLE = _table("%{:02X}", _PLAIN.union("_.-~"))
_LOWER_URL_TABLE = _table("%{:02x}", _PLAIN.union("_.-~"))
_BASE64_INNER = (0, 2, 3)
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_UNICODE_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")

_cache: dict[tuple[str, ...], Redactor] = {}


def cached_redactor(secrets: tuple[str, ...]) -> Redactor:
    """Returns a redactor for these secrets from a cache. In most runs, creating a redactor takes longer than
    using it.
    """
    redactor = _cache.pop(secrets, None)
    if redactor is None:
        redactor = Redactor(secrets)
        _make_room(sum(map(len, secrets)))
    _cache[secrets] = redactor
    return redactor


async def prepare_redactor(secrets: tuple[str, ...]) -> Redactor:
    """Like `cached_redactor`, but lets other tasks run while it creates a redactor."""
    if secrets not in _cache and sum(map(len, secrets)) > MAX_QUICK_CHARS:
        redactor = await asyncio.get_running_loop().run_in_executor(_thread(), _complete_redactor, secrets)
        _make_room(sum(map(len, secrets)))
        _cache[secrets] = redactor
    return cached_redactor(secrets)


@cache
def _thread() -> ThreadPoolExecutor:
    # Use a single thread, because several computing threads would keep the event loop from running.
    return ThreadPoolExecutor(1, "hutch redaction")


def _complete_redactor(secrets: tuple[str, ...]) -> Redactor:
    redactor = Redactor(secrets)
    redactor.prepare()
    return redactor


def _make_room(chars: int) -> None:
    chars += sum(len(secret) for secrets in _cache for secret in secrets)
    while _cache and (len(_cache) >= MAX_CACHED or chars > MAX_CACHED_CHARS):
        oldest = next(iter(_cache))
        chars -= sum(map(len, oldest))
        del _cache[oldest]


class Redactor:
    """Replaces secrets in data, text and JSON values. Runs with the same secrets share a redactor."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._search = PatternSearch(_forms_of_secrets(secrets))

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._search)} forms>"

    def __bool__(self) -> bool:
        return bool(self._search)

    def prepare(self) -> None:
        """Creates in advance everything that the first redaction needs."""
        if self._search:
            _ = self._search.automaton

    def data(self, data: bytes) -> bytes:
        spans = self._search.find(data)
        if not spans:
            return data
        parts: list[bytes] = []
        at = 0
        for start, end in spans:
            parts += (data[at:start], _MARK)
            at = end
        return b"".join((*parts, data[at:]))

    def text(self, text: str) -> str:
        if not self._search:
            return text
        data = text.encode("utf-8", "surrogatepass")
        scrubbed = self.data(data)
        return text if scrubbed is data else scrubbed.decode("utf-8", "surrogatepass")

    async def long_text(self, text: str) -> str:
        """Like `text`, but lets other tasks run meanwhile."""
        return await self._long_text(text, TimeSlices()) if self._search else text

    async def texts(self, texts: Sequence[str]) -> Sequence[str]:
        """Redacts many texts. Lets other tasks run meanwhile."""
        # Search all texts at once first. Most contain no secret, and one search is much faster than one per
        # text.
        if not self._search or not await self._is_in("\n".join(texts).encode("utf-8", "surrogatepass")):
            return texts
        slices = TimeSlices()
        return [await self._long_text(text, slices) for text in texts]

    async def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        pairs = list(headers)
        texts = await self.texts([text for header in pairs for text in header])
        return list(zip(texts[::2], texts[1::2], strict=True))

    async def value(self, value: Any) -> Any:
        """Redacts every string in a JSON value, including keys. Lets other tasks run meanwhile."""
        if not self._search:
            return value
        if isinstance(value, str):
            return (await self.texts([value]))[0]
        # Lone surrogates and large numbers are valid values but cannot be encoded.
        with suppress(UnicodeEncodeError, OverflowError):
            if not await self._is_in(msgspec.json.encode(value)):
                return value
        return await self._walk(value, TimeSlices())

    async def _is_in(self, data: bytes) -> bool:
        """Returns True if `data` contains a secret."""
        if len(data) <= STEP_BYTES:
            return bool(self._search.find(data))
        stream, slices = self.stream(), TimeSlices()
        for _ in stream.steps(data):
            await slices.pause()
        stream.end()
        return stream.has_redacted

    async def _walk(self, value: Any, slices: TimeSlices) -> Any:
        if isinstance(value, str):
            return await self._long_text(value, slices)
        if isinstance(value, dict):
            return {
                await self._long_text(key, slices): await self._walk(item, slices)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [await self._walk(item, slices) for item in value]
        return value

    async def _long_text(self, text: str, slices: TimeSlices) -> str:
        """Like `text`. Lets other tasks run meanwhile."""
        await slices.pause()
        data = text.encode("utf-8", "surrogatepass")
        if len(data) <= STEP_BYTES:
            return self.text(text)
        stream, parts = self.stream(), list[bytes]()
        for part in stream.steps(data):
            parts.append(part)
            await slices.pause()
        parts.append(stream.end())
        return b"".join(parts).decode("utf-8", "surrogatepass") if stream.has_redacted else text

    def stream(self) -> RedactingStream:
        return RedactingStream(self._search)


class RedactingStream:
    """Redacts data that arrives in pieces, including secrets that are split between pieces."""

    def __init__(self, search: PatternSearch) -> None:
        self._search = search
        # The tail is the end of the data that may be the start of a secret. It is held back until more data
        # arrives. `_tail_start` is its offset in the stream, and `_node` is the node of the automaton after
        # the tail.
        self._tail = b""
        self._tail_start = 0
        self._node = ROOT
        # Ranges to redact that were found but not redacted yet, and the end of the last range that was
        # redacted. Both are offsets in the stream.
        self._spans: deque[Span] = deque()
        self._redacted_end = 0

    @property
    def has_redacted(self) -> bool:
        return self._redacted_end > 0

    def feed(self, data: bytes) -> bytes:
        """Returns the redacted data. Holds back a suffix that may be the prefix of a secret."""
        return b"".join(self.steps(data))

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Like `feed`, but returns the data in parts, each after at most a few milliseconds. The time is
        linear in the data, whatever the sizes of the pieces are.
        """
        search = self._search
        if not search:
            yield data
        elif len(data) <= STEP_BYTES:
            yield self._step(data)
        elif search.may_contain(whole := self._tail + data):
            for at in range(0, len(data), STEP_BYTES):
                yield self._step(data[at : at + STEP_BYTES])
        else:
            self._node = search.end_node(whole)
            yield self._release(whole)

    def _step(self, data: bytes) -> bytes:
        search, tail = self._search, self._tail
        if tail and len(data) < search.longest:
            # Continue with the automaton after the tail, because `find` would search the whole tail again.
            at = self._tail_start + len(tail)
            self._node = search.automaton.scan(data, 0, len(data), self._node, self._spans, at)
            data = tail + data
        else:
            data = tail + data
            self._spans = search.find(data, self._tail_start)
            self._node = search.end_node(data)
        return self._release(data)

    def end(self) -> bytes:
        self._node = ROOT
        return self._release(self._tail)

    def _release(self, data: bytes) -> bytes:
        """Redacts and returns `data`, except for its new tail, which is held back."""
        size = len(data) - (self._search.automaton.depth(self._node) if self._node != ROOT else 0)
        offset, spans = self._tail_start, self._spans
        self._tail, self._tail_start = data[size:], offset + size
        at = max(0, self._redacted_end - offset)
        if at == 0 and not spans:
            return data[:size]
        parts: list[bytes] = []
        while spans and spans[0][0] < self._tail_start:
            start, end = spans.popleft()
            # If this range overlaps the previous one, its mark is already written.
            if start - offset >= at:
                parts += (data[at : start - offset], _MARK)
            at = max(at, end - offset)
        self._redacted_end = offset + at
        return b"".join((*parts, data[at:size]))


def _forms_of_secrets(secrets: Iterable[str]) -> Iterator[bytes]:
    for count, part in enumerate(_parts_to_search(secrets)):
        yield from _forms(part)
        if count < MAX_STRICT_PARTS:
            yield from _strictly_escaped(part)


def _parts_to_search(secrets: Iterable[str]) -> list[str]:
    """Returns the parts to search for: first the main part of each secret, then all other parts, longest
    first.
    """
    parts = [list(dict.fromkeys(_parts(secret))) for secret in secrets]
    first = chain.from_iterable(_pieces(group[0]) for group in parts if group)
    others = sorted(chain.from_iterable(group[1:] for group in parts), key=len, reverse=True)
    return list(dict.fromkeys(chain(first, chain.from_iterable(map(_pieces, others)))))[:MAX_PARTS]


def _pieces(part: str) -> Iterator[str]:
    """Splits a part into pieces of nearly equal length, so that no piece is short enough to occur by
    chance.
    """
    count = -(-len(part) // MAX_PART_CHARS)
    size = -(-len(part) // count)
    for at in range(0, len(part), size):
        yield part[at : at + size]


def _parts(secret: str) -> Iterator[str]:
    """Yields a secret, and the parts of it that are secrets themselves."""
    secret = secret.strip()
    match = _SCHEME.fullmatch(secret)
    core = match[1] if match is not None and len(match[1]) >= MIN_SECRET else secret
    if len(core) >= MIN_SECRET:
        yield core
    decoded = unquote(core)
    if decoded != core and len(decoded) >= MIN_PART:
        yield decoded
    if match is not None and secret.lower().startswith("basic"):
        yield from _login(core)
    if _COOKIES.fullmatch(core):
        for pair in core.split(";"):
            value = pair.partition("=")[2].strip().strip('"')
            for text in {value, unquote(value)}:
                if len(text) >= MIN_PART:
                    yield text


def _login(encoded: str) -> Iterator[str]:
    try:
        login = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    user, _, password = login.partition(":")
    for text in (login, password or user):
        if len(text) >= MIN_SECRET:
            yield text


def _forms(part: str) -> Iterator[bytes]:
    """Yields the forms of a part: plain text, and encoded as in URLs, JSON, HTML, hexadecimal and Base64."""
    if not _UNESCAPED.fullmatch(part):
        yield from _escaped(part)
    # Headers are sent in Latin-1, bodies mostly in UTF-8.
    yield from _encoded(part.encode("utf-8", "surrogatepass"))
    if not part.isascii() and max(part) <= "\xff":
        yield from _encoded(part.encode("latin-1"))


def _encoded(data: bytes) -> Iterator[bytes]:
    yield data
    if len(data) < MIN_FORM:
        return
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for before in range(3):
        inner = _base64_inner(data, before)
        yield inner
        if not inner.isalnum():
            yield inner.translate(_URL_SAFE)
            yield inner.replace(b"/", rb"\/")
            yield inner.replace(b"+", b"%2B").replace(b"/", b"%2F")
            yield inner.replace(b"+", b"%2b").replace(b"/", b"%2f")


def _escaped(part: str) -> Iterator[bytes]:
    data = part.encode("utf-8", "surrogatepass")
    for form in _json_forms(part):
        yield form.encode("utf-8", "surrogatepass")
    # Import this only when it is needed, because the module has a table of all entities.
    import html

    in_html = html.escape(part).encode("utf-8", "surrogatepass")
    yield in_html
    yield in_html.replace(b"&#x27;", b"&#39;")
    for table in (_URL_TABLE, _LOWER_URL_TABLE):
        escaped = _translated(data, table)
        yield escaped
        yield escaped.replace(table[32], b"+")
        yield escaped.replace(table[47], b"/")
        for code in b"!'()*":
            escaped = escaped.replace(table[code], bytes((code,)))
        yield escaped


def _translated(data: bytes, table: list[bytes]) -> bytes:
    return b"".join(map(table.__getitem__, data))


def _strictly_escaped(part: str) -> Iterator[bytes]:
    """Yields the rarest forms of a part: all characters escaped, all but letters and digits escaped, and
    UTF-16.
    """
    if len(part) < MIN_FORM or max(part) > "\xff":
        return
    yield part.encode("utf-16-le")
    yield part.encode("utf-16-be")
    codes = part.encode("latin-1")
    lower = codes.hex("%").encode()
    for digits in (lower, lower.upper()):
        yield b"%" + digits
        yield b"\\x" + digits.replace(b"%", b"\\x")
        yield b"\\u00" + digits.replace(b"%", b"\\u00")
        yield b"&#x" + digits.replace(b"%", b";&#x") + b";"
    yield "".join([f"&#{code};" for code in codes]).encode()
    if not _PLAIN.issuperset(part):
        for table in _STRICT_TABLES:
            yield _translated(codes, table)


def _base64_inner(data: bytes, before: int) -> bytes:
    """Returns the Base64 characters of `data` that do not depend on the data before and after it. `before` is
    the number of preceding bytes modulo 3.
    """
    encoded = base64.b64encode(b"\0" * before + data).rstrip(b"=")
    end = len(encoded) - (1 if (before + len(data)) % 3 else 0)
    return encoded[_BASE64_INNER[before] : end]


def _json_forms(part: str) -> set[str]:
    """Returns the JSON forms of a part. Encoders differ in whether they escape non-ASCII characters and
    characters that are special in HTML.
    """
    forms: set[str] = set()
    for ascii_only in (True, False):
        lower = json.dumps(part, ensure_ascii=ascii_only)[1:-1]
        upper = _UNICODE_ESCAPE.sub(_upper_escape, lower) if "\\u" in lower else lower
        for text, escape in ((lower, "\\u{:04x}"), (upper, "\\u{:04X}")):
            for_pages = text
            for char in "<>&":
                for_pages = for_pages.replace(char, escape.format(ord(char)))
            for_html = for_pages
            for char in "'+":
                for_html = for_html.replace(char, escape.format(ord(char)))
            for form in (text, for_pages, for_html):
                forms |= {form, form.replace("/", r"\/")}
    return forms


def _upper_escape(match: re.Match[str]) -> str:
    return "\\u" + match[0][2:].upper()
