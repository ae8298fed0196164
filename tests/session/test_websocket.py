"""The channel over a WebSocket, without one."""

from __future__ import annotations

import asyncio

from hutch.session.websocket import HIGH_WATER, WebSocketChannel


class Socket:
    """Takes what it is sent when it is told to."""

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


async def test_every_line_is_a_message_of_its_own() -> None:
    socket = Socket()
    socket.open.set()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b'{"a":1}\n{"b":2}\n')
    channel.close()
    await channel.finished()
    assert socket.sent == ['{"a":1}', '{"b":2}']


async def test_it_is_writable_until_too_much_waits_and_again_when_that_has_left() -> None:
    socket = Socket()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b"x" * HIGH_WATER)
    await channel.writable()
    channel.send(b"y")
    waiting = asyncio.create_task(channel.writable())
    await asyncio.wait({waiting}, timeout=0)
    assert not waiting.done()
    socket.open.set()
    await waiting
    channel.close()
    await channel.finished()
    assert [len(each) for each in socket.sent] == [HIGH_WATER, 1]


async def test_what_was_said_before_the_end_still_leaves() -> None:
    socket = Socket()
    channel = WebSocketChannel(socket.send, socket.close)
    channel.send(b"last words")
    channel.close("over")
    channel.send(b"too late")
    socket.open.set()
    await channel.finished()
    assert (socket.sent, socket.closed) == (["last words"], ["over"])


async def test_connection_that_breaks_is_told_once() -> None:
    socket = Socket(ConnectionResetError("reset by peer"))
    channel = WebSocketChannel(socket.send, socket.close)
    reasons: list[str] = []
    channel.on_close = reasons.append
    socket.open.set()
    channel.send(b"a")
    channel.send(b"b")
    await channel.finished()
    channel.ended("noticed twice")
    assert reasons == ["reset by peer"]


async def test_nothing_is_heard_after_the_end() -> None:
    socket = Socket()
    channel = WebSocketChannel(socket.send, socket.close)
    heard: list[bytes] = []
    channel.on_line = heard.append
    channel.feed('{"é":1}')
    channel.feed(b"{}")
    channel.close()
    channel.feed("{}")
    await channel.finished()
    assert heard == ['{"é":1}'.encode(), b"{}"]
