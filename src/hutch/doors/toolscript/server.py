"""HTTP/1.1 for the clients in a jail, and no more of it than they need.

A whole server takes longer to load than most scripts take to run, and adds to every call of a tool.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec

from hutch.doors.heads import MAX_HEAD_BYTES, HeadClock
from hutch.egress.headers import MAX_HEADERS

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger("hutch.toolscript")

# Clients give a connection up that is idle for 90 seconds. Whoever does it first must not meet a request.
IDLE_SECONDS = 120.0
# Sent before the one in front of them is answered.
MAX_WAITING = 4
# What holding on to a header takes besides its bytes.
HEADER_BYTES = 200
# Whoever is refused while it still speaks is listened to for so long, or it would not hear the refusal.
LINGER_SECONDS = 1.0

_BODILESS = frozenset({204, 304})


class Held:
    """All requests of one jail that are under way: the host holds them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._bytes = 0

    def take(self, size: int) -> bool:
        self._bytes += size
        return self._bytes <= self.most

    def give(self, size: int) -> None:
        self._bytes -= size


class Jail(Protocol):
    """Whose connections these are."""

    held: Held

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An application."""

    def joined(self, connection: Http) -> bool:
        """Whether it may stay."""

    def left(self, connection: Http) -> None: ...


class _Request:
    """As it comes in."""

    def __init__(self) -> None:
        self.method = ""
        self.version = "1.1"
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.size = 0
        self.keep_alive = False

    def head_size(self) -> int:
        """Roughly what holding on to it takes."""
        texts = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.url) + texts + HEADER_BYTES * len(self.headers)

    def scope(self) -> Scope | None:
        """None for an address that is none."""
        try:
            url = httptools.parse_url(self.url)
            raw = url.path or b"/"
            path = unquote(raw.decode("ascii"))
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return None
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": self.version,
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": raw,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self.headers,
            "client": None,
            "server": None,
        }


class Http(asyncio.Protocol):
    """One connection. Requests are answered one after the other."""

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._held = jail.held
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._kept = 0
        self._in_head = True
        self._clock = HeadClock(self._too_slow)
        self._is_idle = False
        self._reading = _Request()
        self._waiting: deque[_Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._cycle: _Cycle | None = None
        self._deaf = False
        self.gone = False
        self.writable = asyncio.Event()
        self.writable.set()

    # --- what the loop tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none by class.
        self.transport = cast(asyncio.Transport, transport)
        if self._jail.joined(self):
            self._expect_head()
        else:
            transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._has_head()
        self.writable.set()
        for request in (self._reading, *self._waiting):
            self._held.give(request.size)
        self._reading = _Request()
        self._waiting.clear()
        if self._cycle is not None:
            self._cycle.over.set()
        self._jail.left(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        # Not all at once: what is too much is to be noticed before it is all taken in.
        for at in range(0, len(data), MAX_HEAD_BYTES):
            if self._deaf or self.gone:
                return
            self._feed(data[at : at + MAX_HEAD_BYTES])

    def _feed(self, data: bytes) -> None:
        if self._in_head:
            self._expect_head()
        self._kept += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # it is refused already
        except httptools.HttpParserError:
            self._refuse(400, "This is not HTTP/1.1")
        if self._kept > MAX_HEAD_BYTES or len(self._waiting) > MAX_WAITING:
            self._deaf = True
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    # --- what the parser finds ---

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        # In the same data as the end of the request before.
        self._expect_head()
        self._reading = _Request()

    def on_url(self, url: bytes) -> None:
        self._reading.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._reading.headers
        if not self._in_head or self._deaf:
            return
        if len(headers) >= MAX_HEADERS:
            self._refuse(400, f"A request may have {MAX_HEADERS} headers")
        else:
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        self._kept = 0
        self._in_head = False
        request = self._reading
        if not self._take(request.head_size()):
            return
        self._has_head()
        request.method = self._parser.get_method().decode("ascii")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade():
            self._refuse(400, "No other protocol is spoken here")
        elif (b"expect", b"100-continue") in request.headers and self._answering is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        if self._deaf:
            return
        self._reading.body += body
        self._take(len(body))

    def _take(self, size: int) -> bool:
        self._reading.size += size
        if self._held.take(size):
            return True
        self._refuse(413, f"A script's requests may have {self._held.most} bytes at a time")
        return False

    def on_message_complete(self) -> None:
        self._kept = 0
        self._in_head = True
        if self._deaf:
            return
        self._waiting.append(self._reading)
        self._reading = _Request()
        if self._answering is None:
            self._answering = self._loop.create_task(self._answer_all())

    # --- how long a head may take ---

    def _expect_head(self) -> None:
        if self._is_idle:
            self._has_head()
        self._clock.start()

    def _has_head(self) -> None:
        self._is_idle = False
        self._clock.stop()

    def _idle(self) -> None:
        if not self._clock.runs and not self.gone:
            self._is_idle = True
            self._clock.start(IDLE_SECONDS)

    def _too_slow(self) -> None:
        if self._answering is not None:
            # An earlier request of this connection is still being answered.
            self._expect_head()
        else:
            self.transport.abort()

    # --- answering ---

    async def _answer_all(self) -> None:
        try:
            while self._waiting and not self.gone:
                request = self._waiting.popleft()
                try:
                    await self._answer(request)
                finally:
                    self._held.give(request.size)
                if not request.keep_alive:
                    # What came after it is not to be answered.
                    self._deaf = True
                    self.transport.close()
                    break
        finally:
            self._answering = None
        self._idle()

    async def _answer(self, request: _Request) -> None:
        self._cycle = cycle = _Cycle(self, request)
        try:
            if (scope := request.scope()) is None:
                cycle.say(400, "The address of this request is none")
            else:
                await self._jail.answer(scope, cycle.receive, cycle.send)
        except Exception as error:
            # Who has gone is told nothing, and what came of it is of no interest.
            if not self.gone:
                logger.error("a script's request failed", exc_info=error)
                cycle.say(500, "The server failed; its log says why")
        finally:
            self._cycle = None
        if not cycle.over.is_set():
            # Without its end the answer cannot be taken for a whole one.
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """The first time only, and without an answer to what is being answered, if there is such."""
        if self._deaf:
            return
        self._deaf = True
        self._held.give(self._reading.size)
        self._reading = _Request()
        if self._answering is not None or self.transport.is_closing():
            self.transport.abort()
            return
        self.transport.write(_last(status, message))
        self.transport.write_eof()
        self._has_head()
        self._clock.start(LINGER_SECONDS)


class _Cycle:
    """One request and its answer, as applications see them."""

    def __init__(self, http: Http, request: _Request) -> None:
        self.over = asyncio.Event()
        """Set when the answer is complete, or nobody waits for it any more."""
        self._http = http
        self._request = request
        self._received = False
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._begun = False
        self._chunked = False
        if http.gone:
            self.over.set()

    async def receive(self) -> Message:
        if self._received:
            await self.over.wait()
            return {"type": "http.disconnect"}
        self._received = True
        body, self._request.body = bytes(self._request.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if self.over.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        parts = [] if self._begun else [self._head(body, more)]
        if self._request.method != "HEAD" and self._status not in _BODILESS:
            parts += [b"%x\r\n" % len(body), body, b"\r\n"] if self._chunked and body else [body]
            if self._chunked and not more:
                parts.append(b"0\r\n\r\n")
        self._begun = True
        self._http.transport.write(b"".join(parts))
        await self._http.writable.wait()
        if not more:
            self.over.set()

    def _head(self, body: bytes, more: bool) -> bytes:
        lines = [b"HTTP/1.1 %d \r\n" % self._status]
        lines += [name + b": " + value + b"\r\n" for name, value in self._headers]
        is_framed = any(name.lower() == b"content-length" for name, _ in self._headers)
        if self._status not in _BODILESS and not is_framed:
            self._chunked = more
            lines.append(b"transfer-encoding: chunked\r\n" if more else b"content-length: %d\r\n" % len(body))
        if not self._request.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join([*lines, b"\r\n"])

    def say(self, status: int, message: str) -> None:
        """An answer of our own, unless one has begun already."""
        if not self._begun and not self.over.is_set():
            self._request.keep_alive = False
            self._http.transport.write(_last(status, message))
            self.over.set()


def _last(status: int, message: str) -> bytes:
    """An answer after which the connection ends."""
    code = "INTERNAL_ERROR" if status == 500 else "INVALID_REQUEST"
    told: dict[str, Any] = {"success": False, "error": {"code": code, "message": message}}
    body = msgspec.json.encode(told)
    head = b"HTTP/1.1 %d \r\ncontent-type: application/json\r\nconnection: close\r\n" % status
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
