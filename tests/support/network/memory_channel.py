"""In-memory channel for tests: lines sent on one end arrive at the other immediately."""

from __future__ import annotations

from hutch.session.channels.stream import CloseHandler, LineHandler, ignore


class MemoryChannel:
    def __init__(self) -> None:
        self.on_line: LineHandler = ignore
        self.on_close: CloseHandler = ignore
        self.peer: MemoryChannel | None = None
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[MemoryChannel, MemoryChannel]:
        one, other = cls(), cls()
        one.peer, other.peer = other, one
        return one, other

    def send(self, line: bytes) -> None:
        if self.peer is not None and not self.closed:
            for message in line.removesuffix(b"\n").split(b"\n"):
                self.peer.on_line(message)

    async def writable(self) -> None:
        return

    def close(self) -> None:
        if not self.closed and self.peer is not None:
            self.closed = self.peer.closed = True
            self.peer.on_close("the connection closed")
