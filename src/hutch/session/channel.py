"""What a session speaks through: lines out, lines in, the end. Here: byte streams, and memory for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, Any, Protocol, cast

LineHandler = Callable[[bytes], None]
CloseHandler = Callable[[str], None]


class Channel(Protocol):
    """One JSON object a line, in both directions. Whoever owns a channel sets its two handlers."""

    on_line: LineHandler
    on_close: CloseHandler

    def send(self, line: bytes) -> None:
        """Says one or more whole lines; what cannot be said any more is dropped."""

    async def writable(self) -> None:
        """Returns when the other side takes in what was said so far."""

    def close(self) -> None:
        """Ends the channel; `on_close` is not called for an end of our own making."""


def nobody(_: Any) -> None:
    """The handler of a channel that nobody owns yet."""


class Lines:
    """Cuts a byte stream into lines of bounded length."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises ValueError when one exceeds the limit."""
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._held = 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._limit or any(len(line) > self._limit for line in lines):
            raise ValueError(f"a line is longer than {self._limit} bytes (setting max_line_bytes)")
        return lines


class StreamChannel(asyncio.Protocol):
    """A channel over any asyncio stream transport: a unix socket to a local runner, or a program's pipes.

    While the other end of a socket does not read, we do not read it either: nobody can make us
    hold more than it is willing to take.
    """

    def __init__(self, limit: int) -> None:
        self.on_line: LineHandler = nobody
        self.on_close: CloseHandler = nobody
        self._lines = Lines(limit)
        self._transports: list[asyncio.BaseTransport] = []
        self._writer: asyncio.WriteTransport | None = None
        self._clear = asyncio.Event()
        self._clear.set()
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)
        if _can_write(transport):
            self._writer = cast(asyncio.WriteTransport, transport)
        if self._ended:
            transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
        except ValueError as error:
            self._end(str(error))
            return
        for line in lines:
            if line and not self._ended:
                self.on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection closed" if exc is None else str(exc))

    def eof_received(self) -> None:
        self._end("the connection closed")

    def pause_writing(self) -> None:
        self._clear.clear()
        if (socket := self._socket()) is not None:
            socket.pause_reading()

    def resume_writing(self) -> None:
        self._clear.set()
        if (socket := self._socket()) is not None and not socket.is_closing():
            socket.resume_reading()

    def _socket(self) -> asyncio.Transport | None:
        """The one that goes both ways. Over two pipes the other side may be unable to read until we did."""
        return cast(asyncio.Transport, self._writer) if len(self._transports) == 1 else None

    def send(self, line: bytes) -> None:
        if self._writer is not None and not self._ended:
            self._writer.write(line)

    async def writable(self) -> None:
        await self._clear.wait()

    def close(self) -> None:
        self.on_close = nobody
        self._end("closed by the host")

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._clear.set()
        for transport in self._transports:
            transport.close()
        self.on_close(reason)


def _can_write(transport: asyncio.BaseTransport) -> bool:
    """uvloop's transport of a pipe that is read has the methods of a writer too, and they raise."""
    try:
        cast(asyncio.WriteTransport, transport).get_write_buffer_size()
    except (AttributeError, NotImplementedError):
        return False
    return True


def given_away(pipe: IO[bytes]) -> IO[bytes]:
    """A pipe as the event loop is to get it, whose own it is from then on.

    uvloop closes a descriptor and then its file, when the number may be another's already (its issue 763).
    """
    if not type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return pipe
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), pipe.mode, 0, closefd=False)


async def connect_pipes(
    channel: StreamChannel, read: IO[bytes] | None = None, write: IO[bytes] | None = None
) -> None:
    """Gives a channel the pipes that it is to speak over; from then on they are its own.

    Goes through even if it is cancelled: half-way, nobody would know who has to close them.
    """
    loop = asyncio.get_running_loop()
    hearing = () if read is None else (loop.connect_read_pipe(lambda: channel, given_away(read)),)
    speaking = () if write is None else (loop.connect_write_pipe(lambda: channel, given_away(write)),)
    connecting = asyncio.gather(*hearing, *speaking)
    try:
        await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await asyncio.wait((connecting,))
        raise


class MemoryChannel:
    """Two ends of one channel in memory: what one says, the other hears, at once."""

    def __init__(self) -> None:
        self.on_line: LineHandler = nobody
        self.on_close: CloseHandler = nobody
        self.peer: MemoryChannel | None = None
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[MemoryChannel, MemoryChannel]:
        one, other = cls(), cls()
        one.peer, other.peer = other, one
        return one, other

    def send(self, line: bytes) -> None:
        if self.peer is not None and not self.closed:
            for each in line.removesuffix(b"\n").split(b"\n"):
                self.peer.on_line(each)

    async def writable(self) -> None:
        return

    def close(self) -> None:
        if not self.closed and self.peer is not None:
            self.closed = self.peer.closed = True
            self.peer.on_close("the connection closed")
