"""Stream channels: limits and back-pressure."""

from __future__ import annotations

import asyncio
import os
import socket

from tests.support.network.memory_channel import MemoryChannel

from hutch.session.channels.stream import StreamChannel, connect_pipes


async def connected(limit: int = 1000) -> tuple[StreamChannel, socket.socket]:
    host_end, runner_end = socket.socketpair()
    channel = StreamChannel(limit)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=host_end)
    runner_end.setblocking(False)
    return channel, runner_end


async def test_stream_channel_sends_and_receives_lines() -> None:
    channel, other = await connected()
    received_lines: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_line = received_lines.put_nowait
    loop = asyncio.get_running_loop()
    with other:
        await loop.sock_sendall(other, b"one\ntw")
        await loop.sock_sendall(other, b"o\n")
        async with asyncio.timeout(10):
            assert [await received_lines.get(), await received_lines.get()] == [b"one", b"two"]
            channel.send(b"answer\n")
            assert await loop.sock_recv(other, 100) == b"answer\n"
        channel.close()


async def test_lines_are_sent_over_the_socket_even_if_the_read_pipe_connects_later() -> None:
    channel, other = await connected()
    read, write = os.pipe()
    with other, os.fdopen(write, "wb", 0):
        await connect_pipes(channel, os.fdopen(read, "rb", 0))
        channel.send(b"answer\n")
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(other, 100) == b"answer\n"
        channel.close()


async def test_close_is_reported_once_with_its_reason_unless_the_host_closed() -> None:
    for closed_by_host, expected in [(False, ["the connection closed"]), (True, [])]:
        channel, other = await connected()
        reasons: asyncio.Queue[str] = asyncio.Queue()
        channel.on_close = reasons.put_nowait
        if closed_by_host:
            channel.close()
        other.close()
        async with asyncio.timeout(10):
            assert [await reasons.get() for _ in expected] == expected
        assert reasons.empty()


async def test_line_beyond_the_limit_ends_the_channel() -> None:
    channel, other = await connected(limit=10)
    ended = asyncio.get_running_loop().create_future()
    channel.on_close = ended.set_result
    with other:
        await asyncio.get_running_loop().sock_sendall(other, b"x" * 100)
        async with asyncio.timeout(10):
            assert await ended == "a line is longer than 10 bytes (setting max_line_bytes)"


async def test_channel_stops_reading_while_the_peer_does_not_read() -> None:
    channel, other = await connected(limit=100_000_000)
    received_lines: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_line = received_lines.put_nowait
    loop = asyncio.get_running_loop()
    with other:
        channel.send(b"x" * 50_000_000 + b"\n")
        waiting = asyncio.ensure_future(channel.writable())
        other.send(b"ignored for now\n")
        await asyncio.sleep(0)
        assert not waiting.done()
        async with asyncio.timeout(30):
            received = 0
            while received < 50_000_001:
                assert received_lines.empty() or received > 0
                received += len(await loop.sock_recv(other, 1 << 20))
            await waiting
            assert await received_lines.get() == b"ignored for now"
        channel.close()


async def test_memory_channel_delivers_lines_and_the_close() -> None:
    one, other = MemoryChannel.pair()
    lines: list[bytes] = []
    ends: list[str] = []
    other.on_line, other.on_close = lines.append, ends.append
    one.send(b"a\nb\n")
    one.close()
    one.send(b"c\n")
    assert (lines, ends) == ([b"a", b"b"], ["the connection closed"])
