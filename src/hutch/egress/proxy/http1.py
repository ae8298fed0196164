"""Strict HTTP/1.1 parser of the proxy. It rejects everything that another parser could read differently."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

# Why not h11 or httptools: a head takes 3 to 30 us here, and a library would save no lines, because the rules
# for targets, framing and forwarding are specific to this proxy. h11 accepts folded headers, bare LF and
# repeated lengths, and needs 10 s for a hostile head of 60 KB. httptools accepts two spaces in the request
# line, RTSP versions and two requests in one buffer. Measured in November 2026 with h11 0.16 and httptools
# 0.9.

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
MAX_CHUNK_LINE = 4096
HEAD_END = b"\r\n\r\n"

EXPLAIN = b"EXPLAIN"
"""HTTP method that only this proxy supports. Its response repeats the error of the last failed tunnel to a
host and port. The guest needs this method, because Deno's `fetch` does not report the response of a proxy
that refuses a tunnel.
"""

_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})( [^\x00-\x08\x0a-\x1f\x7f]*)?")
_AUTHORITY = re.compile(rb"(\[[^\]]*\]|[^:@\[\]]*)(?::([0-9]{0,5}))?")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;[^\x00-\x08\x0a-\x1f\x7f]*)?")
# Headers that concern one connection and are not forwarded. A client must not influence the proxy's
# connection to the server.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"host")
)
# Headers that only the proxy itself may set in a response.
_PROXY_HEADERS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"x-hutch-egress"))


class BadMessage(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


RawHeaders = list[tuple[bytes, bytes]]


class ProxyRequest(msgspec.Struct):
    """Request to the proxy: either a tunnel, or a request with `head` and `body` to forward."""

    method: bytes
    host: str
    port: int
    is_tunnel: bool
    is_explanation: bool = False
    """True if the client asks why its last tunnel to this host failed."""
    head: bytes = b""
    body: BodyFraming | None = None
    is_upgrade: bool = False


class BodyFraming:
    """Finds the end of a message body. Raises BadMessage for an invalid chunk."""

    def __init__(self, length: int | None) -> None:
        """Creates the state for one body. `length` is None for a chunked body."""
        self._chunked = length is None
        self._left = length or 0
        self._line = bytearray()
        self._state = "data" if length is not None else "size"
        self.done = length == 0

    def feed(self, data: bytes) -> int:
        """Consumes data and returns how many of its bytes belong to the body."""
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
                raise BadMessage("A chunk is longer than its declared size")
            self._state = "size"
        elif self._state == "size":
            match = _CHUNK.fullmatch(line)
            if match is None:
                raise BadMessage("A chunk has no size")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailers"
        elif not line:
            self.done = True
        elif not _FIELD.fullmatch(line):
            raise BadMessage("A trailer is malformed")


def read_request(head: bytes) -> ProxyRequest:
    """Parses the head of a request, without the empty line at its end. Raises BadMessage."""
    first, headers = _parse_head(head)
    parts = first.split(b" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadMessage("The request line is malformed")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadMessage("Only HTTP/1.1 is supported", 505)
    if method in (b"CONNECT", EXPLAIN):
        host, port = _parse_authority(target, None)
        return ProxyRequest(method, host, port, is_tunnel=True, is_explanation=method == EXPLAIN)
    scheme, slashes, rest = target.partition(b"://")
    if scheme.lower() != b"http" or not slashes:
        raise BadMessage("This is a proxy: it accepts CONNECT and absolute http:// URLs")
    authority, path = _split_target(rest)
    host, port = _parse_authority(authority, 80)
    body = _body_framing(headers, version)
    upgrade = _tokens(headers, b"upgrade") == [b"websocket"] and b"upgrade" in _tokens(headers, b"connection")
    connection_headers = (
        [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")] if upgrade else [(b"Connection", b"close")]
    )
    lines = [(b"Host", authority), *_end_to_end_headers(headers), *connection_headers]
    forwarded = _serialize(b"%s %s HTTP/1.1" % (method, path), lines)
    return ProxyRequest(method, host, port, is_tunnel=False, head=forwarded, body=body, is_upgrade=upgrade)


def read_response(head: bytes, is_upgrade: bool) -> tuple[int, bytes]:
    """Parses the head of a response. Returns the status and the head to forward, with `Connection: close`.
    Raises BadMessage.
    """
    first, headers = _parse_head(head)
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadMessage("The status line is malformed", 502)
    status = int(match[1])
    if status < 200:
        if status == 101 and not is_upgrade:
            raise BadMessage("Switched protocols without being asked", 502)
        return status, head + HEAD_END
    forwarded = [(name, value) for name, value in headers if name.lower() not in _PROXY_HEADERS]
    return status, _serialize(first, [*forwarded, (b"Connection", b"close")])


def proxy_response(status: int, reason: str, text: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    body = text.encode(errors="replace") + b"\n"
    lines = [
        f"HTTP/1.1 {status} {reason}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + HEAD_END + body


def _parse_head(head: bytes) -> tuple[bytes, RawHeaders]:
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadMessage("There are too many headers", 431)
    headers: RawHeaders = []
    for line in lines:
        # The pattern allows neither continuation lines nor spaces before the colon.
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadMessage("A header is malformed")
        headers.append((match[1], match[2].strip(b" \t")))
    return first, headers


def _split_target(rest: bytes) -> tuple[bytes, bytes]:
    end = min((at for at in map(rest.find, (b"/", b"?", b"#")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:].partition(b"#")[0]
    return authority, path if path.startswith(b"/") else b"/" + path


def _parse_authority(text: bytes, default: int | None) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(text)
    if match is None or not match[1]:
        raise BadMessage("The host is malformed")
    port = match[2]
    if not port and default is None:
        raise BadMessage("The port is missing")
    return match[1].decode("latin-1"), int(port) if port else default or 0


def _body_framing(headers: RawHeaders, version: bytes) -> BodyFraming:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or len(codings) > 1 or version != b"HTTP/1.1":
            raise BadMessage("The body's length is ambiguous")
        if codings[0].lower() != b"chunked":
            raise BadMessage("Only the transfer encoding chunked is supported", 501)
        return BodyFraming(None)
    if not lengths:
        return BodyFraming(0)
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise BadMessage("The body's length is ambiguous")
    return BodyFraming(int(lengths[0]))


def _tokens(headers: RawHeaders, wanted: bytes) -> list[bytes]:
    values = [value.lower() for name, value in headers if name.lower() == wanted]
    return [token.strip() for value in values for token in value.split(b",")]


def _end_to_end_headers(headers: RawHeaders) -> RawHeaders:
    # Forward the headers that frame the body even if `Connection` names them, because the receiver needs them
    # to find the end of the body.
    named = {*_tokens(headers, b"connection")} - {b"content-length", b"transfer-encoding"}
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in _HOP_BY_HOP
        and not lower.startswith(b"proxy-")
        and lower not in named
    ]


def _serialize(first: bytes, headers: RawHeaders) -> bytes:
    return b"\r\n".join([first, *(b"%s: %s" % header for header in headers)]) + HEAD_END
