"""HTTP/1.1 as the proxy reads it: strictly, so that nobody can read the same bytes differently."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

MAX_HEAD = 64 * 1024
MAX_HEADERS = 256
MAX_CHUNK_LINE = 4096
END = b"\r\n\r\n"

_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})( [^\x00-\x08\x0a-\x1f\x7f]*)?")
_AUTHORITY = re.compile(rb"(\[[^\]]*\]|[^:@\[\]]*)(?::([0-9]{0,5}))?")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;[^\x00-\x08\x0a-\x1f\x7f]*)?")
# Of one connection, not of the message; who speaks to us has no say in how we speak to others.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"host")
)
# In answers, the proxy's alone.
_OURS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"x-hutch-egress"))


class BadMessage(Exception):
    """What was sent is not HTTP/1.1, or not safely so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


Headers = list[tuple[bytes, bytes]]


class Request(msgspec.Struct):
    """A request to a proxy. Either a tunnel, or one to be passed on with `head` and `body`."""

    method: bytes
    host: str
    port: int
    tunnel: bool
    head: bytes = b""
    body: Framing | None = None
    upgrade: bool = False


class Framing:
    """Finds where a body ends. Raises BadMessage for a chunk that is none."""

    def __init__(self, length: int | None) -> None:
        """`length` is None for a chunked body."""
        self._chunked = length is None
        self._left = length or 0
        self._line = bytearray()
        self._state = "data" if length is not None else "size"
        self.done = length == 0

    def feed(self, data: bytes) -> int:
        """How many of these bytes belong to the body."""
        at = 0
        while at < len(data) and not self.done:
            at = self._take_data(data, at) if self._state == "data" else self._take_line(data, at)
        return at

    def _take_data(self, data: bytes, at: int) -> int:
        taken = min(self._left, len(data) - at)
        self._left -= taken
        if self._left == 0:
            if self._chunked:
                self._state = "end"
            else:
                self.done = True
        return at + taken

    def _take_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        self._line += data[at:stop]
        if len(self._line) > MAX_CHUNK_LINE:
            raise BadMessage("A chunk's line is too long")
        if end >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise BadMessage("A chunk's line does not end in CR LF")
            self._read_line(line[:-2])
        return stop

    def _read_line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise BadMessage("A chunk is longer than it says")
            self._state = "size"
        elif self._state == "size":
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise BadMessage("A chunk has no size")
            self._left = int(found[1], 16)
            self._state = "data" if self._left else "trailers"
        elif not line:
            self.done = True
        elif not _FIELD.fullmatch(line):
            raise BadMessage("A trailer is malformed")


def read_request(head: bytes) -> Request:
    """A request's head, without the empty line that ends it. Raises BadMessage."""
    first, headers = _split(head)
    parts = first.split(b" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadMessage("The request line is malformed")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadMessage("Only HTTP/1.1 is spoken here", 505)
    if method == b"CONNECT":
        host, port = _authority(target, None)
        return Request(method, host, port, tunnel=True)
    scheme, slashes, rest = target.partition(b"://")
    if scheme.lower() != b"http" or not slashes:
        raise BadMessage("This is a proxy: it takes CONNECT, and http:// URLs in full")
    authority, path = _cut(rest)
    host, port = _authority(authority, 80)
    body = _framing(headers, version)
    upgrade = _tokens(headers, b"upgrade") == [b"websocket"] and b"upgrade" in _tokens(headers, b"connection")
    ours = (
        [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")] if upgrade else [(b"Connection", b"close")]
    )
    lines = [(b"Host", authority), *_kept(headers), *ours]
    passed = _written(b"%s %s HTTP/1.1" % (method, path), lines)
    return Request(method, host, port, tunnel=False, head=passed, body=body, upgrade=upgrade)


def read_response(head: bytes, upgrade: bool) -> tuple[int, bytes]:
    """A response's status, and its head as it is to be passed on: the connection ends with it."""
    first, headers = _split(head)
    found = _STATUS.fullmatch(first)
    if found is None:
        raise BadMessage("The status line is malformed", 502)
    status = int(found[1])
    if status < 200:
        if status == 101 and not upgrade:
            raise BadMessage("Switched protocols without being asked", 502)
        return status, head + END
    kept = [(name, value) for name, value in headers if name.lower() not in _OURS]
    return status, _written(first, [*kept, (b"Connection", b"close")])


def answer(status: int, reason: str, text: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A whole response of the proxy's own."""
    body = text.encode(errors="replace") + b"\n"
    lines = [
        f"HTTP/1.1 {status} {reason}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + END + body


def _split(head: bytes) -> tuple[bytes, Headers]:
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadMessage("There are too many headers", 431)
    headers: Headers = []
    for line in lines:
        # Neither a line that continues the one before, nor a space before the colon.
        found = _FIELD.fullmatch(line)
        if found is None:
            raise BadMessage("A header is malformed")
        headers.append((found[1], found[2].strip(b" \t")))
    return first, headers


def _cut(rest: bytes) -> tuple[bytes, bytes]:
    """Authority and path of what follows `http://`."""
    end = min((at for at in map(rest.find, (b"/", b"?", b"#")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:].partition(b"#")[0]
    return authority, path if path.startswith(b"/") else b"/" + path


def _authority(text: bytes, default: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    if found is None or not found[1]:
        raise BadMessage("The host is malformed")
    port = found[2]
    if not port and default is None:
        raise BadMessage("The port is missing")
    return found[1].decode("latin-1"), int(port) if port else default or 0


def _framing(headers: Headers, version: bytes) -> Framing:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or len(codings) > 1 or version != b"HTTP/1.1":
            raise BadMessage("The body's length is ambiguous")
        if codings[0].lower() != b"chunked":
            raise BadMessage("Only chunked is known as a transfer encoding", 501)
        return Framing(None)
    if not lengths:
        return Framing(0)
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise BadMessage("The body's length is ambiguous")
    return Framing(int(lengths[0]))


def _tokens(headers: Headers, wanted: bytes) -> list[bytes]:
    values = [value.lower() for name, value in headers if name.lower() == wanted]
    return [token.strip() for value in values for token in value.split(b",")]


def _kept(headers: Headers) -> Headers:
    # What frames the body must stay, whoever calls it a matter of the connection.
    named = {*_tokens(headers, b"connection")} - {b"content-length", b"transfer-encoding"}
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in _HOP_BY_HOP
        and not lower.startswith(b"proxy-")
        and lower not in named
    ]


def _written(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([first, *(b"%s: %s" % header for header in headers)]) + END
