"""Channel over a WebSocket, on the server or on the client: each message is one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from hutch.session.channels.stream import CloseHandler, LineHandler, ignore

# `writable` waits while more bytes than this are queued.
HIGH_WATER_BYTES = 1024 * 1024


EXTENSIONS_HEADER = "Hutch-Extensions"
"""In an upgrade request, this header names the extensions that the client asks for, separated by commas; in
the response, those that the server grants. Without the header, both sides use plain Execbox.
"""
SESSIONS_EXTENSION = "sessions"
FILES_EXTENSION = "files"
DURABLE_EXTENSION = "durable"
ALL_EXTENSIONS = (SESSIONS_EXTENSION, FILES_EXTENSION, DURABLE_EXTENSION)


def parse_extensions(headers: Iterable[str]) -> list[str]:
    """Returns the known extensions that headers name."""
    names = {name.strip() for header in headers for name in header.split(",")}
    return [name for name in ALL_EXTENSIONS if name in names]


class WebSocketChannel:
    """Channel over a WebSocket of any library. The owner passes incoming messages to `feed`, or handles the
    messages itself until `is_ended` is True.

    `send_text` and `close` raise OSError if the connection is lost. `close` gets the reason to send to the
    peer.
    """

    def __init__(
        self, send_text: Callable[[str], Awaitable[None]], close: Callable[[str], Awaitable[None]]
    ) -> None:
        self.on_line: LineHandler = ignore
        self.on_close: CloseHandler = ignore
        self._send_text = send_text
        self._close = close
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queued = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._ended = False
        self._reason = ""
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @property
    def is_ended(self) -> bool:
        return self._ended

    def feed(self, message: str | bytes) -> None:
        if not self._ended:
            self.on_line(message.encode() if isinstance(message, str) else message)

    def on_disconnect(self, reason: str) -> None:
        """Handles the end of the connection."""
        if not self._ended:
            self._stop(reason)
            self.on_close(reason)

    def send(self, line: bytes) -> None:
        if self._ended:
            return
        # Do not use splitlines, because it also splits at carriage returns, which JSON allows as white space.
        for message in line.removesuffix(b"\n").split(b"\n"):
            self._queued += len(message)
            self._queue.put_nowait(message)
        if self._queued > HIGH_WATER_BYTES:
            self._drained.clear()

    async def writable(self) -> None:
        await self._drained.wait()

    def close(self, reason: str = "") -> None:
        """Ends the channel after all queued messages are sent."""
        self.on_close = ignore
        if not self._ended:
            self._stop(reason)

    async def finished(self) -> None:
        """Waits until the queued messages are sent, or sending failed."""
        await asyncio.wait({self._writer})

    def _stop(self, reason: str) -> None:
        self._ended = True
        self._reason = reason
        self._drained.set()
        self._queue.put_nowait(None)

    async def _write(self) -> None:
        try:
            while (line := await self._queue.get()) is not None:
                await self._send_text(line.decode())
                self._queued -= len(line)
                if self._queued <= HIGH_WATER_BYTES:
                    self._drained.set()
            await self._close(self._reason)
        except OSError as error:
            self.on_disconnect(str(error) or "the connection closed")
