"""One request and its answer on a connection: HTTP/1.1 as llhttp reads it, and no more lenient."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable

import httptools

from hutch.egress.fetch import FetchError, Kind
from hutch.egress.headers import MAX_HEADER_BYTES, MAX_HEADERS

# So much of an answer waits to be read before its server has to.
HIGH = 256 * 1024
# What holding on to a part takes besides: of parts of a byte each, that is nearly all.
PART = 64
MAX_INTERIM = 32

_TOO_LONG = f"more than {MAX_HEADER_BYTES // 1024} KiB of headers"
_LENGTH = re.compile(rb"[0-9]{1,18}")

Flow = Callable[[bool], None]


class Exchange:
    """What came of one answer so far. Belongs to whoever asked, also when its connection asks the next."""

    def __init__(self, host: str, method: str, flow: Flow) -> None:
        """`flow` is told whether more may come."""
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.received = 0
        """Bytes on the wire."""
        self.complete = False
        self.reusable = False
        """Whether the connection can be used for another."""
        self.error: FetchError | None = None
        self._host = host
        self._bodiless = method == "HEAD"
        self._flow = flow
        self._paused = False
        self._answered = False
        self._until_end = False
        self._interim = 0
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)

    # --- what the one who asked does ---

    async def answered(self) -> None:
        """Until the head of the answer is there. Raises FetchError."""
        while not self._answered:
            if self.error is not None:
                raise self.error
            await self._wait()

    @property
    def ready(self) -> bool:
        """Whether `take` has something to give, if only the end."""
        return bool(self._chunks) or self.complete or self.error is not None

    async def more(self) -> None:
        """Until there is something to take."""
        while not self.ready:
            await self._wait()

    def take(self) -> bytes:
        """What has come of the body; empty, if nothing more will. Raises FetchError."""
        if self.error is not None:
            raise self.error
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and not self.complete:
            self._paused = False
            self._flow(True)
        return data

    @property
    def drained(self) -> bool:
        """Whether all of the body was taken."""
        return self.complete and not self._chunks

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    # --- what the connection tells ---

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("protocol", "switched protocols without being asked")
        except httptools.HttpParserError:
            self.fail("protocol", "answered with what is not HTTP/1.1")
        if not self._answered and self.received > MAX_HEADER_BYTES:
            self.fail("protocol", f"answered with {_TOO_LONG}")
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        if self.complete or self.error is not None:
            return
        if not self._answered:
            self.fail("unreachable", "closed the connection without an answer")
        elif self._until_end:
            self.complete = True
        else:
            self.fail("protocol", "closed the connection in the middle of its answer")
        self._wake()

    def fail(self, kind: Kind, what: str) -> None:
        """The first failure counts; after the end there is none, only nothing more to ask there."""
        self.reusable = False
        if not self.complete and self.error is None:
            self.error = FetchError(kind, f"{self._host} {what}.")
            self._chunks.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the parser finds ---

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        # Afterwards come trailers, which nobody asked for.
        if not self._answered:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._answered or self.error is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._pass_over(status)
            return
        self.status = status
        if (problem := self._problem()) is not None:
            self.fail("protocol", f"answered with {problem}")
            return
        self._answered = True
        if self._bodiless:
            # The parser does not know of HEAD, and would wait.
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            self.reusable = False
        elif self.error is None:
            self._chunks.append(body)
            self._buffered += len(body) + PART
            if self._buffered > HIGH and not self._paused:
                self._paused = True
                self._flow(False)

    def on_message_complete(self) -> None:
        if self._answered and not self.complete and self.error is None:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    def _pass_over(self, status: int) -> None:
        """Early hints and such. Nobody has a use for them; nor for a server that sends nothing else."""
        self._interim += 1
        self.headers.clear()
        self.reason = b""
        if status == 101 or self._interim > MAX_INTERIM:
            self.fail("protocol", "answered with something that is not an answer")

    def _problem(self) -> str | None:
        """Why a head is not one to go by."""
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            return "what is not HTTP/1.1"
        if len(self.headers) > MAX_HEADERS:
            return f"more than {MAX_HEADERS} headers"
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            return _TOO_LONG
        self._bodiless = self._bodiless or self.status in (204, 304)
        if not self._bodiless and not self._framed():
            return "a body whose length is ambiguous"
        return None

    def _framed(self) -> bool:
        """Whether everybody would find the same end of the body."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings:
            return codings[0].lower() == b"chunked" and len(codings) == 1 and not lengths
        self._until_end = not lengths
        return all(_LENGTH.fullmatch(length) and length == lengths[0] for length in lengths)
