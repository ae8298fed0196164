"""Channel over two file descriptors of any kind: pipes, sockets, terminals, files.

The descriptors stay blocking, because they may be shared with other programs, such as stdin and stdout.
Waking up a thread takes time, so the event loop itself reads from pipes and sockets when they are readable,
and writes short lines to pipes that have space for them. Threads read from files, which cannot be polled, and
write long lines, which may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import stat
import threading
from collections.abc import Callable
from typing import Any

from hutch.session.channels.stream import CloseHandler, LineHandler, ignore
from hutch.streams.lines import LineSplitter, LineTooLong

CHUNK_BYTES = 64 * 1024
# Reading stops while more bytes than this are queued for writing.
HIGH_WATER_BYTES = 1024 * 1024


class DescriptorChannel:
    """Channel over two file descriptors. Calls `on_close` at the end of the input. Lines can still be sent
    after that, until `close`.
    """

    def __init__(self, read: int, write: int, lines: int | LineSplitter) -> None:
        """`lines` is a splitter for the input, or the maximum length of a line in bytes. A longer line ends
        the channel.
        """
        self.on_line: LineHandler = ignore
        self.on_close: CloseHandler = ignore
        self._read_from = read
        self._write_to = write
        self._loop = asyncio.get_running_loop()
        self._lines = LineSplitter(lines) if isinstance(lines, int) else lines
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._is_pollable = _has_type(read, stat.S_ISFIFO, stat.S_ISSOCK)
        self._is_polled = False
        self._room: select.poll | None = None
        """Poll object that checks whether the output has space for PIPE_BUF bytes. None if the output is not
        a pipe.
        """
        if _has_type(write, stat.S_ISFIFO):
            self._room = select.poll()
            self._room.register(write, select.POLLOUT)
        self._may_read = threading.Event()
        self._written = asyncio.Event()
        self._input_ended = False
        self._closed = False

    def open(self) -> None:
        """Starts reading and writing. Set the handlers before."""
        threads = [self._write]
        if self._is_pollable:
            self._start_polling()
        else:
            threads.append(self._read)
        for work in threads:
            # Use daemon threads, so that a blocked read does not keep the program alive.
            threading.Thread(target=work, name=f"hutch {work.__name__}", daemon=True).start()

    def send(self, line: bytes) -> None:
        if self._closed or (not self._queued and self._write_short(line)):
            return
        self._queued += len(line)
        if self._queued > HIGH_WATER_BYTES:
            self._drained.clear()
        self._outbox.put(line)

    async def writable(self) -> None:
        await self._drained.wait()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.on_close = ignore
            self._stop_polling()
            self._drained.set()
            self._outbox.put(None)

    async def finished(self) -> None:
        """Waits until all lines sent before `close` are written, or writing failed."""
        await self._written.wait()

    # --- in the event loop ---

    def _write_short(self, line: bytes) -> bool:
        """Returns False if the line is long or does not fit into the pipe now."""
        if self._room is None or len(line) > select.PIPE_BUF or not self._room.poll(0):
            return False
        try:
            return os.write(self._write_to, line) == len(line)
        except OSError:
            # Leave the line to the writing thread, which gets the same error and reports it.
            return False

    def _start_polling(self) -> None:
        self._is_polled = True
        self._loop.add_reader(self._read_from, self._on_readable)

    def _stop_polling(self) -> None:
        if self._is_polled:
            self._is_polled = False
            self._loop.remove_reader(self._read_from)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._read_from, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self._stop_polling()
            self._on_eof()

    def _on_data(self, data: bytes) -> None:
        try:
            for line in self._lines.feed(data):
                if line and not self._closed:
                    self.on_line(line)
        except LineTooLong as error:
            self._stop_polling()
            self._end(f"{error} (setting max_line_bytes)")
            return
        if self._drained.is_set():
            self._may_read.set()
        else:
            self._stop_polling()

    def _on_eof(self) -> None:
        # End the last line here, because the last line of a file may have no line break.
        self._on_data(b"\n")
        self._end("the input ended")

    def _on_written(self, size: int) -> None:
        self._queued -= size
        if self._queued <= HIGH_WATER_BYTES and not self._drained.is_set():
            self._drained.set()
            self._may_read.set()
            if self._is_pollable and not (self._input_ended or self._closed):
                self._start_polling()

    def _end(self, reason: str) -> None:
        if not self._input_ended:
            self._input_ended = True
            self.on_close(reason)

    # --- in the threads ---

    def _read(self) -> None:
        while data := self._chunk():
            self._may_read.clear()
            self._call_in_loop(self._on_data, data)
            self._may_read.wait()
        self._call_in_loop(self._on_eof)

    def _chunk(self) -> bytes:
        while True:
            try:
                return os.read(self._read_from, CHUNK_BYTES)
            except BlockingIOError:
                select.select([self._read_from], [], [])
            except OSError:
                return b""

    def _write(self) -> None:
        try:
            while (line := self._outbox.get()) is not None:
                self._write_all(line)
                self._call_in_loop(self._on_written, len(line))
        except OSError as error:
            self._call_in_loop(self._end, f"the output cannot be written: {error.strerror}")
        self._call_in_loop(self._written.set)

    def _write_all(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._write_to, rest) :]
            except BlockingIOError:
                select.select([], [self._write_to], [])

    def _call_in_loop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        # Ignore RuntimeError, which means that the loop is already closed. Then no handler is needed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _has_type(descriptor: int, *is_type: Callable[[int], bool]) -> bool:
    mode = os.fstat(descriptor).st_mode
    return any(check(mode) for check in is_type)
