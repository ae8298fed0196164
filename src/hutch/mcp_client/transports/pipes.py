"""Reads and writes lines on pipes. Lines that are too long are skipped and reported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

# Number of bytes to keep of the prefix and of the suffix of an oversized line. They are enough to find the id
# of the call.
EDGE_BYTES = 256
# Maximum length of a line. A longer line ends the connection.
MAX_LINE_BYTES = 256 * 1024 * 1024
# Number of queued bytes at which reading from the server pauses.
MAX_QUEUED_BYTES = 1024 * 1024
# A server that leaves this many written bytes unread is disconnected. Only responses and notifications count,
# because requests are written only after the server has read enough.
MAX_UNREAD_BYTES = 4 * 1024 * 1024


class OversizedLine(msgspec.Struct, frozen=True):
    head: bytes
    tail: bytes
    limit: str = ""
    """Limit that the line exceeds, if it is not the maximum length."""


class LineReader(asyncio.Protocol):
    """Reading end of a pipe. A line for which the `accept` callback returns True is not queued.

    This class does not use `hutch.streams.lines`, because it needs the start, the end and the length of an
    oversized line.
    """

    def __init__(self, max_message_bytes: int, accept: Callable[[bytes], bool] = lambda _: False) -> None:
        self.is_endless = False
        self._max_message_bytes = max_message_bytes
        self._accept = accept
        self._lines: deque[bytes | OversizedLine] = deque()
        self._queued_bytes = 0
        self._parts: list[bytes] = []
        self._line_bytes = 0
        self._skipping: OversizedLine | None = None
        self._closed = False
        self._paused = False
        self._more = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    async def next(self) -> bytes | OversizedLine | None:
        """Returns the next line that is not blank, or None at the end."""
        while not self._lines:
            if self._closed:
                return None
            self._more.clear()
            await self._more.wait()
        line = self._lines.popleft()
        self._queued_bytes -= _size(line)
        if self._paused and self._queued_bytes < MAX_QUEUED_BYTES and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return line

    @property
    def is_ended(self) -> bool:
        """True if the other side has closed the pipe."""
        return self._closed and self._transport is None

    def close(self) -> None:
        self._closed = True
        self._more.set()
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol ---

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
            self._add_part(data[start:end])
            self._finish_line()
            start = end + 1
        self._add_part(data[start:])
        if self._lines:
            self._more.set()
        if self._line_bytes > max(MAX_LINE_BYTES, self._max_message_bytes):
            self.is_endless = True
            self.close()
        elif self._queued_bytes >= MAX_QUEUED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _add_part(self, part: bytes) -> None:
        self._line_bytes += len(part)
        if self._skipping is not None:
            tail = (self._skipping.tail + part)[-EDGE_BYTES:]
            self._skipping = OversizedLine(self._skipping.head, tail)
        elif self._line_bytes > self._max_message_bytes:
            data = b"".join((*self._parts, part))
            self._skipping = OversizedLine(data[:EDGE_BYTES], data[-EDGE_BYTES:])
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finish_line(self) -> None:
        line = self._skipping or b"".join(self._parts)
        self._skipping = None
        self._parts.clear()
        self._line_bytes = 0
        if isinstance(line, OversizedLine) or (line.strip() and not self._accept(line)):
            self._lines.append(line)
            self._queued_bytes += _size(line)


def _size(line: bytes | OversizedLine) -> int:
    # Every line counts at least EDGE_BYTES, because a short line takes more memory than its length.
    return EDGE_BYTES + (len(line) if isinstance(line, bytes) else EDGE_BYTES)


class LineWriter(asyncio.BaseProtocol):
    """Writing end of a pipe. `on_lost` is called if the pipe is lost before `close`, with a reason if the
    server left too much data unread.
    """

    def __init__(self, on_lost: Callable[[str | None], None]) -> None:
        self._on_lost = on_lost
        self._closed = False
        self._unread_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._transport: asyncio.WriteTransport | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed or (self._transport is not None and self._transport.is_closing())

    def write(self, line: bytes) -> None:
        if self._transport is None or self.is_closed:
            return
        if not self._drained.is_set():
            self._unread_bytes += len(line)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.close()
                self._on_lost("it does not read its input")
                return
        self._transport.write(line)

    async def wait_drained(self) -> None:
        # Use a loop, because another task may have filled the buffer again.
        while not self._drained.is_set():
            await self._drained.wait()

    def close(self) -> None:
        """Closes the pipe immediately and discards buffered data."""
        self._closed = True
        self._drained.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        is_lost = not self._closed
        self._closed = True
        self._transport = None
        self._drained.set()
        if is_lost:
            self._on_lost(None)

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        self._drained.set()
