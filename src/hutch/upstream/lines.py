"""What a server writes, cut into lines of bounded length: what is too long is skipped, and said to be so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

# Of a line that is too long: enough to tell whose answer it was.
EDGE_BYTES = 256
# A line that is longer than this has no end.
ENDLESS_BYTES = 256 * 1024 * 1024
# Bytes in lines that nobody took yet, past which nothing more is read.
HIGH_WATER = 1024 * 1024
# Bytes written to who does not read, past which it is given up. Only answers and notifications do not wait.
MOST_UNREAD = 4 * 1024 * 1024


class TooLong(msgspec.Struct, frozen=True):
    """In the place of a line: how it began and ended."""

    head: bytes
    tail: bytes


class LineReader(asyncio.Protocol):
    """The reading end of a pipe. Lines that are `taken` as they come do not wait to be read."""

    def __init__(self, limit: int, taken: Callable[[bytes], bool] = lambda _: False) -> None:
        self.endless = False
        self._limit = limit
        self._taken = taken
        self._lines: deque[bytes | TooLong] = deque()
        self._waiting = 0
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping: TooLong | None = None
        self._closed = False
        self._paused = False
        self._more = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    async def next(self) -> bytes | TooLong | None:
        """The next line that is not blank; None when there are no more."""
        while not self._lines:
            if self._closed:
                return None
            self._more.clear()
            await self._more.wait()
        line = self._lines.popleft()
        self._waiting -= _size(line)
        if self._paused and self._waiting < HIGH_WATER and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return line

    @property
    def ended(self) -> bool:
        """Whether the other side has closed its end."""
        return self._closed and self._transport is None

    def close(self) -> None:
        self._closed = True
        self._more.set()
        if self._transport is not None:
            self._transport.close()

    # --- the pipe's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._transport = None
        self._more.set()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            self._finish()
            start = end + 1
        self._take(data[start:])
        if self._lines:
            self._more.set()
        if self._held > max(ENDLESS_BYTES, self._limit):
            self.endless = True
            self.close()
        elif self._waiting >= HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _take(self, part: bytes) -> None:
        self._held += len(part)
        if self._skipping is not None:
            tail = (self._skipping.tail + part)[-EDGE_BYTES:]
            self._skipping = TooLong(self._skipping.head, tail)
        elif self._held > self._limit:
            whole = b"".join((*self._parts, part))
            self._skipping = TooLong(whole[:EDGE_BYTES], whole[-EDGE_BYTES:])
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finish(self) -> None:
        line = self._skipping or b"".join(self._parts)
        self._skipping = None
        self._parts.clear()
        self._held = 0
        if isinstance(line, TooLong) or (line.strip() and not self._taken(line)):
            self._lines.append(line)
            self._waiting += _size(line)


def _size(line: bytes | TooLong) -> int:
    # Many short lines take more than their bytes.
    return EDGE_BYTES + (len(line) if isinstance(line, bytes) else EDGE_BYTES)


class LineWriter(asyncio.BaseProtocol):
    """The writing end of a pipe. `on_lost` is called unless it is closed, with a reason if we gave up."""

    def __init__(self, on_lost: Callable[[str | None], None]) -> None:
        self._on_lost = on_lost
        self._closed = False
        self._unread = 0
        self._clear = asyncio.Event()
        self._clear.set()
        self._transport: asyncio.WriteTransport | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written, be it only just now."""
        return self._closed or (self._transport is not None and self._transport.is_closing())

    def write(self, line: bytes) -> None:
        if self._transport is None or self.closed:
            return
        if not self._clear.is_set():
            self._unread += len(line)
            if self._unread > MOST_UNREAD:
                self.close()
                self._on_lost("it does not read what it is told")
                return
        self._transport.write(line)

    async def drained(self) -> None:
        """Returns when what was written is taken in, as far as that goes."""
        # Who was woken before may have written since.
        while not self._clear.is_set():
            await self._clear.wait()

    def close(self) -> None:
        """At once: what the other side has not taken in by now, it never will."""
        self._closed = True
        self._clear.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        lost = not self._closed
        self._closed = True
        self._transport = None
        self._clear.set()
        if lost:
            self._on_lost(None)

    def pause_writing(self) -> None:
        self._clear.clear()

    def resume_writing(self) -> None:
        self._unread = 0
        self._clear.set()
