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

# Maximum time of a poll, which blocks the event loop. Most guests send their next message within this time.
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


class Backoff:
    """Decides whether to poll. After a poll without a message, skips polls: 1, 3, 7, then always 15."""

    __slots__ = ("_skips", "_skips_left")

    def __init__(self) -> None:
        self._skips = self._skips_left = 0

    def may_poll(self) -> bool:
        if self._skips_left > 0:
            self._skips_left -= 1
            return False
        return True

    def record(self, *, has_message: bool) -> None:
        """Records the outcome of a poll."""
        self._skips = 0 if has_message else min(2 * self._skips + 1, MAX_SKIPPED_POLLS)
        self._skips_left = self._skips


class LowLatencyChannel(StreamChannel):
    """Channel that writes to a socket and reads from a pipe."""

    def __init__(self, limit: int, notifier: LineNotifier) -> None:
        """The channel takes ownership of `notifier` and closes it at the end."""
        super().__init__(limit)
        self._notifier = notifier
        self._sent_lines = 0
        # Separate, because a guest that computes for long before its first call may then make quick calls.
        self._after_execute, self._after_result = Backoff(), Backoff()
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

    def send_execute(self, line: bytes) -> None:
        """Like `send`, but writes immediately and polls for `started` and the next message of the runner."""
        self._send_and_poll(line, self._after_execute, 2)

    def send_result(self, line: bytes) -> None:
        """Like `send`, but writes immediately, notifies a polling runner, and polls for the runner's next
        message.
        """
        self._send_and_poll(line, self._after_result, 1)

    def _send_and_poll(self, line: bytes, backoff: Backoff, replies: int) -> None:
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
        if backoff.may_poll():
            asyncio.get_running_loop().call_soon(self._poll, backoff, replies)

    def _poll(self, backoff: Backoff, replies: int) -> None:
        """Polls for the next message, and for further ones until `replies` messages have arrived."""
        if self._read_pipe is None:
            return
        until = perf_counter() + POLL_SECONDS
        while (data := self._read_pipe.read(READ_BYTES)) is None:
            if perf_counter() > until:
                backoff.record(has_message=False)
                return
        # Ignore empty data: the transport reports the end of the stream.
        if data:
            self.data_received(data)
            if (replies := replies - data.count(b"\n")) > 0:
                # The outcome of the last poll counts. Most guests send `started` at once, also those that
                # then compute for long.
                asyncio.get_running_loop().call_soon(self._poll, backoff, replies)
                return
        backoff.record(has_message=True)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._notifier.close()
            for file in (self._write_socket, self._read_pipe):
                if file is not None:
                    file.close()
            self._write_socket = self._read_pipe = None
        super()._end(reason)
