"""A channel over two file descriptors of any kind: pipes, sockets, terminals, files.

They are read and written by threads: files cannot be waited for, and what may be shared with other
programs, as stdin and stdout are, must not be made non-blocking under their feet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import Any, Protocol

from hutch.session.channel import CloseHandler, LineHandler, Lines, nobody

CHUNK = 64 * 1024
# Bytes said but not written yet, past which nothing more is read.
HIGH_WATER = 1024 * 1024


class LineCutter(Protocol):
    """Makes lines of what is read."""

    def feed(self, data: bytes) -> list[bytes]: ...


class DescriptorChannel:
    """When nothing more can be read, `on_close` is called; what is said is still written, until `close`."""

    def __init__(self, read: int, write: int, lines: int | LineCutter) -> None:
        """`lines` cuts what is read; a number is the most bytes of a line, past which the channel ends."""
        self.on_line: LineHandler = nobody
        self.on_close: CloseHandler = nobody
        self._read_from = read
        self._write_to = write
        self._loop = asyncio.get_running_loop()
        self._lines = Lines(lines) if isinstance(lines, int) else lines
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._clear = asyncio.Event()
        self._clear.set()
        self._may_read = threading.Event()
        self._written = asyncio.Event()
        self._heard_all = False
        self._closed = False

    def open(self) -> None:
        """Begins to read and write; the handlers are set by now."""
        for work in (self._read, self._write):
            # A read that never returns must not keep the program alive.
            threading.Thread(target=work, name=f"hutch {work.__name__}", daemon=True).start()

    def send(self, line: bytes) -> None:
        if self._closed:
            return
        self._queued += len(line)
        if self._queued > HIGH_WATER:
            self._clear.clear()
        self._outbox.put(line)

    async def writable(self) -> None:
        await self._clear.wait()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.on_close = nobody
            self._clear.set()
            self._outbox.put(None)

    async def finished(self) -> None:
        """Waits until all that was said before `close` is written, or cannot be."""
        await self._written.wait()

    # --- in the event loop ---

    def _heard(self, data: bytes) -> None:
        try:
            for line in self._lines.feed(data):
                if line and not self._closed:
                    self.on_line(line)
        except ValueError as error:
            self._end(str(error))
            return
        if self._clear.is_set():
            self._may_read.set()

    def _heard_the_end(self) -> None:
        # The last line of a file may lack its end.
        self._heard(b"\n")
        self._end("the input ended")

    def _sent(self, size: int) -> None:
        self._queued -= size
        if self._queued <= HIGH_WATER and not self._clear.is_set():
            self._clear.set()
            self._may_read.set()

    def _end(self, reason: str) -> None:
        if not self._heard_all:
            self._heard_all = True
            self.on_close(reason)

    # --- in the threads ---

    def _read(self) -> None:
        while data := self._chunk():
            self._may_read.clear()
            self._tell(self._heard, data)
            self._may_read.wait()
        self._tell(self._heard_the_end)

    def _chunk(self) -> bytes:
        while True:
            try:
                return os.read(self._read_from, CHUNK)
            except BlockingIOError:
                select.select([self._read_from], [], [])
            except OSError:
                return b""

    def _write(self) -> None:
        try:
            while (line := self._outbox.get()) is not None:
                self._write_all(line)
                self._tell(self._sent, len(line))
        except OSError as error:
            self._tell(self._end, f"the output cannot be written: {error.strerror}")
        self._tell(self._written.set)

    def _write_all(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._write_to, rest) :]
            except BlockingIOError:
                select.select([], [self._write_to], [])

    def _tell(self, what: Callable[..., Any], *arguments: Any) -> None:
        # The loop may be over already.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *arguments)
