"""A channel over a WebSocket, ours or a client's: one message is one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hutch.session.channel import CloseHandler, LineHandler, nobody

# Bytes said but not sent yet, past which whoever asks is told to wait.
HIGH_WATER = 1024 * 1024


class WebSocketChannel:
    """Knows no WebSocket library: it is given how to send and to close, and is fed what comes.

    Both raise OSError when the connection is gone. `close` gets the reason, for the other side to read.
    """

    def __init__(
        self, send_text: Callable[[str], Awaitable[None]], close: Callable[[str], Awaitable[None]]
    ) -> None:
        self.on_line: LineHandler = nobody
        self.on_close: CloseHandler = nobody
        self._send_text = send_text
        self._close = close
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queued = 0
        self._clear = asyncio.Event()
        self._clear.set()
        self._ended = False
        self._reason = ""
        self._writer = asyncio.get_running_loop().create_task(self._write())

    def feed(self, message: str | bytes) -> None:
        """A message came."""
        if not self._ended:
            self.on_line(message.encode() if isinstance(message, str) else message)

    def ended(self, reason: str) -> None:
        """The other side went away."""
        if not self._ended:
            self._stop(reason)
            self.on_close(reason)

    def send(self, line: bytes) -> None:
        if self._ended:
            return
        # Not splitlines: a carriage return is white space of JSON, not the end of a line.
        for each in line.removesuffix(b"\n").split(b"\n"):
            self._queued += len(each)
            self._queue.put_nowait(each)
        if self._queued > HIGH_WATER:
            self._clear.clear()

    async def writable(self) -> None:
        await self._clear.wait()

    def close(self, reason: str = "") -> None:
        """Ends the channel once all that was said before has left."""
        self.on_close = nobody
        if not self._ended:
            self._stop(reason)

    async def finished(self) -> None:
        """Waits until what was said before the end has left, as far as it could."""
        await asyncio.wait({self._writer})

    def _stop(self, reason: str) -> None:
        self._ended = True
        self._reason = reason
        self._clear.set()
        self._queue.put_nowait(None)

    async def _write(self) -> None:
        try:
            while (line := await self._queue.get()) is not None:
                await self._send_text(line.decode())
                self._queued -= len(line)
                if self._queued <= HIGH_WATER:
                    self._clear.set()
            await self._close(self._reason)
        except OSError as error:
            self.ended(str(error) or "the connection closed")
