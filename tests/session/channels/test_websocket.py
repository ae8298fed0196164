"""WebSocket channel, with a fake socket."""

from __future__ import annotations

import asyncio

from hutch.session.channels.websocket import HIGH_WATER_BYTES, WebSocketChannel


class FakeSocket:
    """Fake socket whose `send` waits until `open` is set."""

    def __init__(self, error: OSError | None = None) -> None:
        self.open = asyncio.Event()
        self.sent: list[str] = []
        self.closed: list[str] = []
        self.error = error

    async def send(self, text: str) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(text)

    async def close(self, reason: str) -> None:
        self.closed.append(reason)


async def test_each_line_is_one_message() -> None:
    socket = FakeSocket()
    socket.open.set()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b'{"a":1}\n{"b":2}\n')
    channel.close()
    await channel.finished()
    assert socket.sent == ['{"a":1}', '{"b":2}']


async def test_writable_waits_while_too_many_bytes_are_queued() -> None:
    socket = FakeSocket()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b"x" * HIGH_WATER_BYTES)
    await channel.writable()
    channel.send(b"y")
    waiting = asyncio.create_task(channel.writable())
    await asyncio.wait({waiting}, timeout=0)
    assert not waiting.done()
    socket.open.set()
    await waiting
    channel.close()
    await channel.finished()
    assert [len(text) for text in socket.sent] == [HIGH_WATER_BYTES, 1]


async def test_lines_queued_before_close_are_sent() -> None:
    socket = FakeSocket()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b"last words")
    channel.close("over")
    channel.send(b"too late")
    socket.open.set()
    await channel.finished()
    assert (socket.sent, socket.closed) == (["last words"], ["over"])


async def test_broken_connection_is_reported_once() -> None:
    socket = FakeSocket(ConnectionResetError("reset by peer"))
    channel = WebSocketChannel(socket.send, socket.close)
    reasons: list[str] = []
    channel.on_close = reasons.append
    socket.open.set()
    channel.send(b"a")
    channel.send(b"b")
    await channel.finished()
    channel.on_disconnect("noticed twice")
    assert reasons == ["reset by peer"]


async def test_messages_after_close_are_ignored() -> None:
    socket = FakeSocket()
    channel = WebSocketChannel(socket.send, socket.close)
    lines: list[bytes] = []
    channel.on_line = lines.append
    channel.feed('{"é":1}')
    channel.feed(b"{}")
    channel.close()
    channel.feed("{}")
    await channel.finished()
    assert lines == ['{"é":1}'.encode(), b"{}"]
