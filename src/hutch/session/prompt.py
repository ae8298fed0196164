"""A channel to a runner that may be awake: what is said is there at once, and so is what it says next.

Between two processes that sleep whenever they wait, most of a short message's time is spent on waking up. So
where a core has nothing else to do, the runner watches a bell for a moment before it sleeps, and the host
listens for a moment before its loop does.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
from time import perf_counter
from typing import Protocol

from hutch.session.channel import StreamChannel

# In which most guests make their next call; for as long the loop does nothing else.
LISTEN_SECONDS = 0.0001
# After a guest that took longer, how many times at the most it is not listened for.
MOST_PASSED = 15
READ_BYTES = 65_536


class Bell(Protocol):
    """Tells who is awake at the other end that it was spoken to: `hutch.sandbox.bell`."""

    def ring(self, lines: int) -> None:
        """As many lines were said by now."""

    def close(self) -> None:
        """Nothing is said any more."""


class PromptChannel(StreamChannel):
    """Speaks over a socket and hears over a pipe."""

    def __init__(self, limit: int, bell: Bell) -> None:
        """`bell`: what the other end watches; from now on it is the channel's own."""
        super().__init__(limit)
        self._bell = bell
        self._said = 0
        self._passing = self._passed = 0
        # Of our own: a transport's may be closed, and its number another's, before we hear of it.
        self._mouth: socket.socket | None = None
        self._ear: io.FileIO | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._ended:
            return
        if transport is self._writer:
            self._mouth = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        else:
            self._ear = io.FileIO(os.dup(transport.get_extra_info("pipe").fileno()))

    def send(self, line: bytes) -> None:
        self._said += line.count(b"\n")
        super().send(line)

    def send_now(self, line: bytes) -> None:
        """As `send`, but at once, with a ring for who watches, and an ear for what that says next."""
        mouth, writer = self._mouth, self._writer
        if mouth is None or writer is None or writer.get_write_buffer_size():
            self.send(line)
            return
        self._said += line.count(b"\n")
        try:
            sent = mouth.send(line)
        except OSError:
            # It takes nothing at the moment, or never again: the transport finds out.
            sent = 0
        if sent < len(line):
            writer.write(line[sent:])
        self._bell.ring(self._said)
        asyncio.get_running_loop().call_soon(self._listen)

    def _listen(self) -> None:
        if self._ear is None:
            return
        if self._passing > 0:
            self._passing -= 1
            return
        until = perf_counter() + LISTEN_SECONDS
        while (data := self._ear.read(READ_BYTES)) is None:
            if perf_counter() > until:
                self._passing = self._passed = min(2 * self._passed + 1, MOST_PASSED)
                return
        self._passed = 0
        # Of its end the transport tells.
        if data:
            self.data_received(data)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._bell.close()
            for each in (self._mouth, self._ear):
                if each is not None:
                    each.close()
            self._mouth = self._ear = None
        super()._end(reason)
