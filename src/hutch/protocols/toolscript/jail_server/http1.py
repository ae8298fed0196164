"""Minimal HTTP/1.1 server for the clients in a jail.

It is used instead of a complete server, which takes longer to import than most scripts run and would slow
down every tool call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec

from hutch.egress.client.headers import MAX_HEADERS
from hutch.http.server.connections import MAX_HEAD_BYTES, HeadTimeout

logger = logging.getLogger("hutch.toolscript")

# Clients close a connection after 90 idle seconds. The server waits longer, so that it does not close a
# connection on which a client is about to send a request.
IDLE_SECONDS = 120.0
# Maximum number of pipelined requests that wait for the current request.
MAX_PIPELINED = 4
# Memory that a stored header takes in addition to its bytes.
HEADER_OVERHEAD_BYTES = 200
# Time for which the server still reads what a rejected client sends. If the server closed the connection at
# once, the client could not read the error response.
LINGER_SECONDS = 1.0

_BODILESS = frozenset({204, 304})

RawHeaders = Iterable[tuple[bytes, bytes]]


class ByteBudget:
    """Limits the memory of all unfinished requests of one jail."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0

    def reserve(self, size: int) -> bool:
        self._bytes += size
        return self._bytes <= self.max_bytes

    def release(self, size: int) -> None:
        self._bytes -= size


class ConnectionOwner(Protocol):
    """The listener that a connection belongs to."""

    request_bytes: ByteBudget

    async def handle(self, request: JailRequest, response: JailResponse) -> None:
        """Sends the response to a request. The task is cancelled if the client disconnects."""

    def connection_opened(self, connection: JailConnection) -> bool:
        """Registers a connection. Returns False if the connection must be closed."""

    def connection_closed(self, connection: JailConnection) -> None: ...


class JailRequest:
    """A request from a jail. Header names are in lower case."""

    def __init__(self) -> None:
        self.method = ""
        self.url = b""
        self.path = ""
        """Decoded path of the URL."""
        self.raw_path = b""
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.size = 0
        self.keep_alive = False

    def head_size(self) -> int:
        """Returns the approximate memory use of the head."""
        texts = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.url) + texts + HEADER_OVERHEAD_BYTES * len(self.headers)

    def header(self, name: bytes) -> str:
        """Returns the first header of this name, or an empty string."""
        return next((value for header, value in self.headers if header == name), b"").decode("latin-1")

    def take_body(self) -> bytes:
        """Returns the body and frees the request's copy of it."""
        body, self.body = bytes(self.body), bytearray()
        return body

    def parse_url(self) -> bool:
        """Sets the path and the query from the URL. Returns False if the URL is invalid."""
        try:
            url = httptools.parse_url(self.url)
            self.raw_path = url.path or b"/"
            self.path = unquote(self.raw_path.decode("ascii"))
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return False
        self.query = url.query or b""
        return True


class JailConnection(asyncio.Protocol):
    """One connection. Its requests are handled one after the other."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._request_bytes = owner.request_bytes
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        self._in_head = True
        self._clock = HeadTimeout(self._on_head_timeout)
        self._is_idle = False
        self._reading = JailRequest()
        self._pipeline: deque[JailRequest] = deque()
        self._responder: asyncio.Task[None] | None = None
        self._ignores_input = False
        self.is_disconnected = False
        self.writable = asyncio.Event()
        self.writable.set()

    # --- asyncio callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Use a cast, because uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        if self._owner.connection_opened(self):
            self._expect_head()
        else:
            transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_disconnected = True
        self._stop_clock()
        self.writable.set()
        for request in (self._reading, *self._pipeline):
            self._request_bytes.release(request.size)
        self._reading = JailRequest()
        self._pipeline.clear()
        if self._responder is not None:
            self._responder.cancel()
        self._owner.connection_closed(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        # Parse in pieces, so that an oversized request is noticed before all of it is parsed.
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self._ignores_input or self.is_disconnected:
                return
            self._feed(data[start : start + MAX_HEAD_BYTES])

    def _feed(self, data: bytes) -> None:
        if self._in_head:
            self._expect_head()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # `on_headers_complete` has already rejected the request.
        except httptools.HttpParserError:
            self._refuse(400, "This is not HTTP/1.1")
        if self._head_bytes > MAX_HEAD_BYTES or len(self._pipeline) > MAX_PIPELINED:
            self._ignores_input = True
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    # --- parser callbacks ---

    def on_message_begin(self) -> None:
        if self._ignores_input:
            return
        # Start the head timeout here, too, because the head may have arrived together with the end of the
        # previous request.
        self._expect_head()
        self._reading = JailRequest()

    def on_url(self, url: bytes) -> None:
        self._reading.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._reading.headers
        if not self._in_head or self._ignores_input:
            return
        if len(headers) >= MAX_HEADERS:
            self._refuse(400, f"A request may have at most {MAX_HEADERS} headers")
        else:
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._ignores_input:
            return
        self._head_bytes = 0
        self._in_head = False
        request = self._reading
        if not self._take(request.head_size()):
            return
        self._stop_clock()
        request.method = self._parser.get_method().decode("ascii")
        request.keep_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade():
            self._refuse(400, "Only HTTP/1.1 is supported here")
        elif (b"expect", b"100-continue") in request.headers and self._responder is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._ignores_input:
            return
        self._reading.body += body
        self._take(len(body))

    def _take(self, size: int) -> bool:
        self._reading.size += size
        if self._request_bytes.reserve(size):
            return True
        self._refuse(
            413, f"The open requests of a script may have at most {self._request_bytes.max_bytes} bytes"
        )
        return False

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._in_head = True
        if self._ignores_input:
            return
        self._pipeline.append(self._reading)
        self._reading = JailRequest()
        if self._responder is None:
            self._responder = self._loop.create_task(self._answer_all())

    # --- head timeout ---

    def _expect_head(self) -> None:
        if self._is_idle:
            self._stop_clock()
        self._clock.start()

    def _stop_clock(self) -> None:
        self._is_idle = False
        self._clock.stop()

    def _start_idle_timeout(self) -> None:
        if not self._clock.is_running and not self.is_disconnected:
            self._is_idle = True
            self._clock.start(IDLE_SECONDS)

    def _on_head_timeout(self) -> None:
        if self._responder is not None:
            # Continue waiting, because an earlier request on this connection is still being handled.
            self._expect_head()
        else:
            self.transport.abort()

    # --- responses ---

    async def _answer_all(self) -> None:
        try:
            while self._pipeline:
                request = self._pipeline.popleft()
                try:
                    await self._answer(request)
                finally:
                    self._request_bytes.release(request.size)
                if not request.keep_alive:
                    # Ignore pipelined requests that follow.
                    self._ignores_input = True
                    self.transport.close()
                    break
        finally:
            self._responder = None
        self._start_idle_timeout()

    async def _answer(self, request: JailRequest) -> None:
        response = JailResponse(self, request)
        try:
            if request.parse_url():
                await self._owner.handle(request, response)
            else:
                response.send_error(400, "The URL of this request is invalid")
        except Exception as error:
            # If the client has disconnected, it gets no response, and the error is irrelevant.
            if not self.is_disconnected:
                logger.error("a request of a script failed", exc_info=error)
                response.send_error(500, "The server failed; its log says why")
        if not response.is_complete:
            # Abort, so that the client notices the incomplete response.
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Rejects the connection. Sends an error unless an earlier request is still being handled."""
        if self._ignores_input:
            return
        self._ignores_input = True
        self._request_bytes.release(self._reading.size)
        self._reading = JailRequest()
        if self._responder is not None or self.transport.is_closing():
            self.transport.abort()
            return
        self.transport.write(_final_error(status, message))
        self.transport.write_eof()
        self._stop_clock()
        self._clock.start(LINGER_SECONDS)


class JailResponse:
    """The response to one request. Call either `send`, or `start`, `write` any number of times, and `end`."""

    def __init__(self, connection: JailConnection, request: JailRequest) -> None:
        self.is_complete = False
        self._connection = connection
        self._request = request
        self._is_started = False
        self._has_body = True
        self._is_chunked = False

    async def send(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Sends a complete response."""
        head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        self.is_complete = True
        await self._write(head + body if self._has_body else head)

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Sends the head of a response. The response is chunked unless `headers` contain its length."""
        headers = list(headers)
        head = self._head(status, headers, b"transfer-encoding: chunked\r\n")
        self._is_chunked = self._has_body and not _has_length(headers)
        await self._write(head)

    async def write(self, part: bytes) -> None:
        if self._has_body and part:
            await self._write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)

    async def end(self) -> None:
        self.is_complete = True
        if self._is_chunked:
            await self._write(b"0\r\n\r\n")

    def send_error(self, status: int, message: str) -> None:
        """Sends an error response unless a response has already started."""
        if not self._is_started:
            self._request.keep_alive = False
            self._is_started = self.is_complete = True
            self._connection.transport.write(_final_error(status, message))

    def _head(self, status: int, headers: RawHeaders, framing: bytes) -> bytes:
        """Builds the head. `framing` is the header that marks the end of the body, used if `headers` contain
        no length.
        """
        headers = list(headers)
        self._is_started = True
        self._has_body = self._request.method != "HEAD" and status not in _BODILESS
        lines = [b"HTTP/1.1 %d \r\n" % status]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if status not in _BODILESS and not _has_length(headers):
            lines.append(framing)
        lines.append(b"\r\n" if self._request.keep_alive else b"connection: close\r\n\r\n")
        return b"".join(lines)

    async def _write(self, data: bytes) -> None:
        if not self._connection.is_disconnected:
            self._connection.transport.write(data)
            await self._connection.writable.wait()


def _has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)


def _final_error(status: int, message: str) -> bytes:
    """Builds an error response that closes the connection."""
    code = "INTERNAL_ERROR" if status == 500 else "INVALID_REQUEST"
    body = msgspec.json.encode({"success": False, "error": {"code": code, "message": message}})
    head = b"HTTP/1.1 %d \r\ncontent-type: application/json\r\nconnection: close\r\n" % status
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
