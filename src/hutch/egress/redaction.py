"""Takes secrets out of what comes back: as they are, and in the forms that servers commonly give them.

A net, not a boundary: who has a secret can always write it in a form that nobody else knows. What keeps
secrets from others is that they are sent to their own host alone.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import msgspec

MARK = "[redacted]"
# Shorter ones are in any text by chance.
MIN_SECRET = 4
# Of what is only a part of a secret, or a form of one.
MIN_PART = 8
MIN_FORM = 6
# What is looked for costs time with every piece that comes: of so many parts, of so few in the rarest forms.
MOST_PARTS = 256
MOST_STRICT = 8
# Longer ones are looked for in pieces: where one may have begun is looked at again and again.
MOST_PART_CHARS = 1024

_MARK = MARK.encode()
_SCHEME = re.compile(r"(?:bearer|basic|token|bot|key|apikey|api-key) +(\S.*)", re.I)
_COOKIES = re.compile(r"[^\s=;,]+=[^;]*(?:; *[^\s=;,]+=[^;]*)*;? *")
# What few escape.
_ALIKE = re.compile(r"[A-Za-z0-9_.-]*")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
# As those encoders write a character that leave nothing to chance.
_STRICT = (
    *("%{:02x}", "%{:02X}", "\\x{:02x}", "\\x{:02X}", "\\u{:04x}", "\\u{:04X}"),
    *("&#x{:x};", "&#x{:X};", "&#{};"),
)
_SOME_ESCAPED = tuple(
    {code: form.format(code) for code in range(256) if chr(code) not in _PLAIN} for form in _STRICT
)
_BASE64_INNER = (0, 2, 3)
_FOR_URLS = bytes.maketrans(b"+/", b"-_")
# What forms of one kind all have in them. Looking for one byte is a fraction of looking for each of them.
_MARKERS = (b"%", b"\\", b"&", b"\0")


@lru_cache(64)
def redactor_of(secrets: tuple[str, ...]) -> Redactor:
    """One for the same secrets: its making takes longer than all that it does in most runs."""
    return Redactor(secrets)


class Redactor:
    """Knows the secrets of one run, and of another with the same; whoever uses it does not change it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {
            form
            for count, part in enumerate(_ranked(secrets))
            for form in chain(_forms(part), _strictly_escaped(part) if count < MOST_STRICT else ())
        }
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self._groups = _grouped(ordered)
        self._forms = ordered
        self._by_first: dict[bytes, list[bytes]] = {}
        for form in ordered:
            self._by_first.setdefault(form[:1], []).append(form)
        self._longest = len(ordered[0]) if ordered else 0
        self._nested = any(other.startswith(one) for one, other in pairwise(sorted(forms)))

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._forms)} forms>"

    def __bool__(self) -> bool:
        return bool(self._forms)

    def data(self, data: bytes) -> bytes:
        for marker, forms in self._groups:
            if marker in data:
                for form in forms:
                    if form in data:
                        data = data.replace(form, _MARK)
        return data

    def text(self, text: str) -> str:
        if not self._forms:
            return text
        data = text.encode("utf-8", "surrogatepass")
        scrubbed = self.data(data)
        return text if scrubbed is data else scrubbed.decode("utf-8", "surrogatepass")

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        given = list(headers)
        # Most have nothing in them: one look at all is a fraction of a look at each.
        together = "\n".join(text for header in given for text in header)
        if self.text(together) is together:
            return given
        return [(self.text(name), self.text(value)) for name, value in given]

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it scrubbed, keys too."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        # Lone surrogates and large numbers are values too.
        with suppress(UnicodeEncodeError, OverflowError):
            data = msgspec.json.encode(value)
            if self.data(data) is data:
                return value
        return self._walk(value)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._walk(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(each) for each in value]
        return value

    def stream(self) -> Stream:
        return Stream(self)

    def held(self, data: bytes) -> int:
        """Where the end of `data` may be the beginning of a secret; its length if it is not."""
        start = max(0, len(data) - self._longest + 1)
        first = len(data)
        for form in chain.from_iterable(
            forms for byte, forms in self._by_first.items() if data.find(byte, start) >= 0
        ):
            at = data.find(form[:1], max(start, len(data) - len(form) + 1), first)
            while at >= 0:
                if form.startswith(data[at:]):
                    first = at
                    break
                at = data.find(form[:1], at + 1, first)
        return first

    def undecided(self, data: bytes) -> int:
        """Where the end of `data` begins that has a secret in it, but may be more of a longer one; its length
        if there is no such end."""
        if not self._nested:
            return len(data)
        at = self.held(data)
        for form in self._forms:
            if data.find(form, max(0, at - len(form) + 1), at + len(form) - 1) >= 0:
                return len(data)  # it is in the middle of one
        return at


class Stream:
    """Scrubs what comes in pieces; a secret that is split between them is found."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on by now."""
        if not self._redactor:
            return data
        data = self._tail + data
        decided = self._redactor.undecided(data)
        if decided < len(data):
            self._tail = data[decided:]
            return self._redactor.data(data[:decided])
        data = self._redactor.data(data)
        held = self._redactor.held(data)
        self._tail = data[held:]
        return data[:held]

    def end(self) -> bytes:
        tail, self._tail = self._tail, b""
        return self._redactor.data(tail)


def _grouped(forms: list[bytes]) -> tuple[tuple[bytes, tuple[bytes, ...]], ...]:
    """Forms by the byte that has to be there for any of them; the empty one always is. Order is kept."""
    groups: dict[bytes, list[bytes]] = {}
    for form in forms:
        marker = next((each for each in _MARKERS if each in form), b"")
        groups.setdefault(marker, []).append(form)
    return tuple((marker, tuple(group)) for marker, group in groups.items())


def _ranked(secrets: Iterable[str]) -> list[str]:
    """The parts of all of them that are looked for: of each the first before the second of any, and of more
    than can be looked for the longest."""
    parts = [list(dict.fromkeys(_parts(secret))) for secret in secrets]
    first = chain.from_iterable(_pieces(each[0]) for each in parts if each)
    others = sorted(chain.from_iterable(each[1:] for each in parts), key=len, reverse=True)
    return list(dict.fromkeys(chain(first, chain.from_iterable(map(_pieces, others)))))[:MOST_PARTS]


def _pieces(part: str) -> Iterator[str]:
    """All of them long, so that none is in any text by chance."""
    count = -(-len(part) // MOST_PART_CHARS)
    size = -(-len(part) // count)
    for at in range(0, len(part), size):
        yield part[at : at + size]


def _parts(secret: str) -> Iterator[str]:
    """A secret, and what of it is one by itself."""
    secret = secret.strip()
    found = _SCHEME.fullmatch(secret)
    core = found[1] if found is not None and len(found[1]) >= MIN_SECRET else secret
    if len(core) >= MIN_SECRET:
        yield core
    decoded = unquote(core)
    if decoded != core and len(decoded) >= MIN_PART:
        yield decoded
    if found is not None and secret.lower().startswith("basic"):
        yield from _login(core)
    if _COOKIES.fullmatch(core):
        for pair in core.split(";"):
            value = pair.partition("=")[2].strip().strip('"')
            for each in {value, unquote(value)}:
                if len(each) >= MIN_PART:
                    yield each


def _login(encoded: str) -> Iterator[str]:
    try:
        login = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    user, _, password = login.partition(":")
    for each in (login, password or user):
        if len(each) >= MIN_SECRET:
            yield each


def _forms(part: str) -> Iterator[bytes]:
    """A part as it is, and as it looks in URLs, JSON, HTML, hexadecimal and Base64."""
    if not _ALIKE.fullmatch(part):
        for text in _escaped(part):
            yield text.encode("utf-8", "surrogatepass")
    # Headers are sent in Latin-1, texts mostly in UTF-8.
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
            yield inner.translate(_FOR_URLS)
            yield inner.replace(b"/", rb"\/")
            escaped = quote(inner, safe="")
            yield escaped.encode()
            yield _lower_escapes(escaped).encode()


def _escaped(part: str) -> set[str]:
    texts = {*_in_json(part), html.escape(part), html.escape(part).replace("&#x27;", "&#39;")}
    for text in {quote(part, safe=""), quote(part, safe="!'()*~"), quote(part), quote_plus(part)}:
        texts |= {text, _lower_escapes(text)}
    return texts


def _strictly_escaped(part: str) -> Iterator[bytes]:
    """With every character escaped that is no letter or digit, and with those escaped too; and as UTF-16."""
    if len(part) < MIN_FORM or max(part) > "\xff":
        return
    yield part.encode("utf-16-le")
    yield part.encode("utf-16-be")
    codes = part.encode("latin-1")
    lower = codes.hex("%").encode()
    for each in (lower, lower.upper()):
        yield b"%" + each
        yield b"\\x" + each.replace(b"%", b"\\x")
        yield b"\\u00" + each.replace(b"%", b"\\u00")
        yield b"&#x" + each.replace(b"%", b";&#x") + b";"
    yield "".join([f"&#{code};" for code in codes]).encode()
    if not _PLAIN.issuperset(part):
        for table in _SOME_ESCAPED:
            yield part.translate(table).encode()


def _base64_inner(data: bytes, before: int) -> bytes:
    """What is the same whatever else is encoded with it, if so many bytes (mod 3) come before."""
    encoded = base64.b64encode(b"\0" * before + data).rstrip(b"=")
    end = len(encoded) - (1 if (before + len(data)) % 3 else 0)
    return encoded[_BASE64_INNER[before] : end]


def _in_json(part: str) -> set[str]:
    """As encoders differ: in what they leave beyond ASCII, and in what they escape for the sake of HTML."""
    made: set[str] = set()
    for ascii_only in (True, False):
        text = json.dumps(part, ensure_ascii=ascii_only)[1:-1]
        for_html = re.sub(r"[<>&'+]", lambda found: f"\\u{ord(found[0]):04x}", text)
        for_pages = re.sub(r"[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)
        for each in (text, for_html, for_pages):
            made |= {each, each.replace("/", r"\/")}
    upper = {re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), each) for each in made}
    return made | upper


def _lower_escapes(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)
