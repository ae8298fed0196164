"""Low-latency channel: writes immediately and polls briefly for the next message.

Between two processes that sleep while they wait, most of the time of a short message is spent on waking up.
So if a core is idle, the runner polls a wake-up file before it sleeps, and the host polls its pipe before its
event loop sleeps.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
from time import perf_counter
from typing import Protocol

from hutch.session.channels.stream import StreamChannel

# Maximum time of a poll, which blocks the event loop. Most guests make their next call within this time.
POLL_SECONDS = 0.0001
# Maximum number of polls that are skipped after a poll without a message (exponential back-off).
MAX_SKIPPED_POLLS = 15
READ_BYTES = 65_536


class LineNotifier(Protocol):
    """Notifies a polling runner of the number of lines sent; see `hutch.sandbox.runner.pipes`."""

    def set_line_count(self, lines: int) -> None:
        """Publishes `lines`, the number of lines sent so far."""

    def close(self) -> None:
        """Ends the notifications."""


class LowLatencyChannel(StreamChannel):
    """Channel that writes to a socket and reads from a pipe."""

    def __init__(self, limit: int, notifier: LineNotifier) -> None:
        """The channel takes ownership of `notifier` and closes it at the end."""
        super().__init__(limit)
        self._notifier = notifier
        self._sent_lines = 0
        self._skips_left = self._skips = 0
        # Duplicates of the transports' descriptors. A transport may close its own descriptor before it tells
        # the channel. Another file may then get the same number.
        self._write_socket: socket.socket | None = None
        self._read_pipe: io.FileIO | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._ended:
            return
        if transport is self._writer:
            self._write_socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        else:
            self._read_pipe = io.FileIO(os.dup(transport.get_extra_info("pipe").fileno()))

    def send(self, line: bytes) -> None:
        self._sent_lines += line.count(b"\n")
        super().send(line)

    def send_now(self, line: bytes) -> None:
        """Like `send`, but writes immediately, notifies a polling runner, and polls for the runner's next
        message.
        """
        write_socket, writer = self._write_socket, self._writer
        if write_socket is None or writer is None or writer.get_write_buffer_size():
            self.send(line)
            return
        self._sent_lines += line.count(b"\n")
        try:
            sent = write_socket.send(line)
        except OSError:
            # The buffer is full or the peer has disconnected. The transport handles both cases.
            sent = 0
        if sent < len(line):
            writer.write(memoryview(line)[sent:])
        self._notifier.set_line_count(self._sent_lines)
        asyncio.get_running_loop().call_soon(self._poll)

    def _poll(self) -> None:
        if self._read_pipe is None:
            return
        if self._skips_left > 0:
            self._skips_left -= 1
            return
        until = perf_counter() + POLL_SECONDS
        while (data := self._read_pipe.read(READ_BYTES)) is None:
            if perf_counter() > until:
                self._skips_left = self._skips = min(2 * self._skips + 1, MAX_SKIPPED_POLLS)
                return
        self._skips = 0
        # Ignore empty data: the transport reports the end of the stream.
        if data:
            self.data_received(data)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._notifier.close()
            for file in (self._write_socket, self._read_pipe):
                if file is not None:
                    file.close()
            self._write_socket = self._read_pipe = None
        super()._end(reason)
