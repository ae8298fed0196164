"""One HTTP/1.1 request and its response on a connection, parsed by llhttp in its strict mode."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable

import httptools

from hutch.egress.client.headers import MAX_HEADER_BYTES, MAX_HEADERS
from hutch.egress.client.models import FetchError, FetchErrorKind

# Why not httpcore2: its parser, h11, accepts folded headers, bare LF and repeated lengths, and needs 10 s for
# a hostile head of 60 KB. httpcore2 itself treats data that follows a response as the next response. llhttp
# (httptools) is strict and takes linear time. httpcore2 would save only about 70 lines. It also adds 0.25 to
# 0.4 ms per request, but that is not the reason. Measured in November 2026 with httpcore2 2.16 and h11 0.16.

# Number of buffered bytes at which reading pauses.
MAX_BUFFERED_BYTES = 256 * 1024
# Added to the size of each buffered chunk, because a chunk of one byte takes about this much memory.
CHUNK_OVERHEAD = 64
MAX_INTERIM_RESPONSES = 32

_TOO_LONG = f"more than {MAX_HEADER_BYTES // 1024} KiB of headers"
_LENGTH = re.compile(rb"[0-9]{1,18}")

SetReading = Callable[[bool], None]


class HttpExchange:
    """State of one request and its response. It stays valid when the connection starts the next exchange."""

    def __init__(self, host: str, method: str, set_reading: SetReading) -> None:
        """Creates an exchange. `set_reading` is called with False to pause reading and with True to resume
        it.
        """
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.received = 0
        """Bytes received on the connection, including framing."""
        self.is_complete = False
        self.is_reusable = False
        self.error: FetchError | None = None
        self._host = host
        self._has_no_body = method == "HEAD"
        self._set_reading = set_reading
        self._paused = False
        self._has_head = False
        self._ends_with_connection = False
        self._interim = 0
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)

    async def wait_for_head(self) -> None:
        while not self._has_head:
            if self.error is not None:
                raise self.error
            await self._wait()

    @property
    def is_ready(self) -> bool:
        """True if `take` would not have to wait: there is data, the body has ended, or the exchange has
        failed.
        """
        return bool(self._chunks) or self.is_complete or self.error is not None

    async def wait_for_data(self) -> None:
        while not self.is_ready:
            await self._wait()

    def take(self) -> bytes:
        """Returns the buffered part of the body, or empty bytes at the end of the body. Raises FetchError."""
        if self.error is not None:
            raise self.error
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and not self.is_complete:
            self._paused = False
            self._set_reading(True)
        return data

    @property
    def is_drained(self) -> bool:
        return self.is_complete and not self._chunks

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("protocol", "switched protocols without being asked")
        except httptools.HttpParserError:
            self.fail("protocol", "answered with data that is not HTTP/1.1")
        if not self._has_head and self.received > MAX_HEADER_BYTES:
            self.fail("protocol", f"answered with {_TOO_LONG}")
        self._wake()

    def end(self, *, is_regular: bool = False) -> None:
        """Ends the exchange, because its connection has ended.

        `is_regular`: the server closed the connection properly, so no data is missing. Over TLS, this
        requires a closure alert (RFC 9112, section 9.8).
        """
        if self.is_complete or self.error is not None:
            return
        if not self._has_head:
            self.fail("unreachable", "closed the connection without an answer")
        elif self._ends_with_connection and is_regular:
            self.is_complete = True
        else:
            self.fail("protocol", "closed the connection in the middle of its answer")
        self._wake()

    def fail(self, kind: FetchErrorKind, what: str) -> None:
        """Records the first failure. If the response is already complete, only prevents reuse of the
        connection.
        """
        self.is_reusable = False
        if not self.is_complete and self.error is None:
            self.error = FetchError(kind, f"{self._host} {what}.")
            self._chunks.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.is_reusable = False

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        # Headers after the head are trailers, which are ignored.
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._has_head or self.error is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_interim(status)
            return
        self.status = status
        if (problem := self._head_problem()) is not None:
            self.fail("protocol", f"answered with {problem}")
            return
        self._has_head = True
        if self._has_no_body:
            # Complete the message here. The parser does not know that the request was HEAD, and would wait
            # for a body.
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self.is_complete:
            self.is_reusable = False
        elif self.error is None:
            self._chunks.append(body)
            self._buffered += len(body) + CHUNK_OVERHEAD
            if self._buffered > MAX_BUFFERED_BYTES and not self._paused:
                self._paused = True
                self._set_reading(False)

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_complete and self.error is None:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()

    def _skip_interim(self, status: int) -> None:
        """Skips an interim response, such as early hints. Fails if there are too many."""
        self._interim += 1
        self.headers.clear()
        self.reason = b""
        if status == 101 or self._interim > MAX_INTERIM_RESPONSES:
            self.fail("protocol", "answered with too many or unsupported interim responses")

    def _head_problem(self) -> str | None:
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            return "an unsupported version of HTTP"
        if len(self.headers) > MAX_HEADERS:
            return f"more than {MAX_HEADERS} headers"
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            return _TOO_LONG
        self._has_no_body = self._has_no_body or self.status in (204, 304)
        if not self._has_no_body and not self._is_unambiguous():
            return "a body whose length is ambiguous"
        return None

    def _is_unambiguous(self) -> bool:
        """Returns True if every HTTP parser would find the same end of the body."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings:
            return codings[0].lower() == b"chunked" and len(codings) == 1 and not lengths
        self._ends_with_connection = not lengths
        return all(_LENGTH.fullmatch(length) and length == lengths[0] for length in lengths)
