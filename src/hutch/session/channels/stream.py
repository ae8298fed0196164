"""Channels over byte streams, and the `Channel` protocol that all channels implement."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, Any, Protocol, cast

from hutch.streams.lines import LineSplitter, LineTooLong
from hutch.tasks import finish

LineHandler = Callable[[bytes], None]
CloseHandler = Callable[[str], None]


class Channel(Protocol):
    """Bidirectional stream of JSON lines. The owner sets both handlers."""

    on_line: LineHandler
    on_close: CloseHandler

    def send(self, line: bytes) -> None:
        """Sends one or more complete lines. Does nothing if the channel has ended."""

    async def writable(self) -> None:
        """Waits while the send buffer is full."""

    def close(self) -> None:
        """Ends the channel, without calling `on_close`."""


def ignore(_: Any) -> None:
    """Default handler, until the channel has an owner."""


class StreamChannel(asyncio.Protocol):
    """Channel over any asyncio stream transport: a unix socket to a local runner, or the pipes of a program.

    On a socket, the channel stops reading while the peer does not read what the channel has written. This
    bounds the buffered output.
    """

    def __init__(self, limit: int) -> None:
        self.on_line: LineHandler = ignore
        self.on_close: CloseHandler = ignore
        self._lines = LineSplitter(limit)
        self._transports: list[asyncio.BaseTransport] = []
        self._writer: asyncio.WriteTransport | None = None
        self._drained = asyncio.Event()
        self._drained.set()
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
        except LineTooLong as error:
            self._end(f"{error} (setting max_line_bytes)")
            return
        for line in lines:
            if line and not self._ended:
                self.on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection closed" if exc is None else str(exc))

    def eof_received(self) -> None:
        self._end("the connection closed")

    def pause_writing(self) -> None:
        self._drained.clear()
        if (socket := self._socket()) is not None:
            socket.pause_reading()

    def resume_writing(self) -> None:
        self._drained.set()
        if (socket := self._socket()) is not None and not socket.is_closing():
            socket.resume_reading()

    def _socket(self) -> asyncio.Transport | None:
        """Returns the transport if it is bidirectional, otherwise None. With two pipes, reading must not
        pause, because the peer may be unable to read until its own output was read.
        """
        return cast(asyncio.Transport, self._writer) if len(self._transports) == 1 else None

    def send(self, line: bytes) -> None:
        if self._writer is not None and not self._ended:
            self._writer.write(line)

    async def writable(self) -> None:
        await self._drained.wait()

    def close(self) -> None:
        self.on_close = ignore
        self._end("closed by the host")

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._drained.set()
        for transport in self._transports:
            transport.close()
        self.on_close(reason)


def _can_write(transport: asyncio.BaseTransport) -> bool:
    """Returns True if the transport can write. A read pipe of uvloop has the methods of a writer too, but
    they raise.
    """
    try:
        cast(asyncio.WriteTransport, transport).get_write_buffer_size()
    except (AttributeError, NotImplementedError):
        return False
    return True


def prepare_pipe(pipe: IO[bytes]) -> IO[bytes]:
    """Returns a file object for the event loop, which takes ownership of the pipe.

    Works around uvloop issue 763: uvloop closes the descriptor first and its file object later. By then,
    another file may have the same descriptor number.
    """
    if not type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return pipe
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), pipe.mode, 0, closefd=False)


async def connect_pipes(
    channel: StreamChannel, read: IO[bytes] | None = None, write: IO[bytes] | None = None
) -> None:
    """Connects a channel to pipes. The channel takes ownership of the pipes.

    Runs to its end even if the caller is cancelled. Otherwise it would be unclear whether the channel or the
    caller has to close the pipes.
    """
    loop = asyncio.get_running_loop()
    readers = () if read is None else (loop.connect_read_pipe(lambda: channel, prepare_pipe(read)),)
    writers = () if write is None else (loop.connect_write_pipe(lambda: channel, prepare_pipe(write)),)
    await finish(asyncio.gather(*readers, *writers))
