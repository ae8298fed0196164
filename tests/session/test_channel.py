"""Channels: lines however a stream is cut, bounded, and held back while the other side does not read."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from hutch.session.channel import Lines, MemoryChannel, StreamChannel, connect_pipes


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_whole_however_the_stream_is_cut(size: int) -> None:
    data = b"first\n\nsecond line\nthird"
    lines, found = Lines(100), []
    for at in range(0, len(data), size):
        found += lines.feed(data[at : at + size])
    assert found == [b"first", b"", b"second line"]


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x" * 11 + b"\n"]])
def test_a_line_beyond_the_limit_is_an_error_before_it_is_complete(chunks: list[bytes]) -> None:
    *before, last = chunks
    lines = Lines(10)
    for chunk in before:
        lines.feed(chunk)
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        lines.feed(last)


async def connected(limit: int = 1000) -> tuple[StreamChannel, socket.socket]:
    ours, theirs = socket.socketpair()
    channel = StreamChannel(limit)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    theirs.setblocking(False)
    return channel, theirs


async def test_a_stream_channel_speaks_and_hears_lines() -> None:
    channel, other = await connected()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_line = heard.put_nowait
    loop = asyncio.get_running_loop()
    with other:
        await loop.sock_sendall(other, b"one\ntw")
        await loop.sock_sendall(other, b"o\n")
        async with asyncio.timeout(10):
            assert [await heard.get(), await heard.get()] == [b"one", b"two"]
            channel.send(b"answer\n")
            assert await loop.sock_recv(other, 100) == b"answer\n"
        channel.close()


async def test_what_is_said_goes_over_the_socket_also_when_the_pipe_that_is_heard_connects_after_it() -> None:
    channel, other = await connected()
    read, write = os.pipe()
    with other, os.fdopen(write, "wb", 0):
        await connect_pipes(channel, os.fdopen(read, "rb", 0))
        channel.send(b"answer\n")
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(other, 100) == b"answer\n"
        channel.close()


async def test_the_end_is_told_once_with_its_reason_and_not_for_our_own_close() -> None:
    for ours, expected in [(False, ["the connection closed"]), (True, [])]:
        channel, other = await connected()
        reasons: asyncio.Queue[str] = asyncio.Queue()
        channel.on_close = reasons.put_nowait
        if ours:
            channel.close()
        other.close()
        async with asyncio.timeout(10):
            assert [await reasons.get() for _ in expected] == expected
        assert reasons.empty()


async def test_a_line_beyond_the_limit_ends_the_channel_with_the_reason() -> None:
    channel, other = await connected(limit=10)
    ended = asyncio.get_running_loop().create_future()
    channel.on_close = ended.set_result
    with other:
        await asyncio.get_running_loop().sock_sendall(other, b"x" * 100)
        async with asyncio.timeout(10):
            assert "longer than 10 bytes" in await ended


async def test_while_the_other_side_does_not_read_we_are_told_to_wait_and_do_not_read_it_either() -> None:
    channel, other = await connected(limit=100_000_000)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_line = heard.put_nowait
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
                assert heard.empty() or received > 0
                received += len(await loop.sock_recv(other, 1 << 20))
            await waiting
            assert await heard.get() == b"ignored for now"
        channel.close()


async def test_two_ends_in_memory_hear_each_other_and_the_end() -> None:
    one, other = MemoryChannel.pair()
    heard: list[bytes] = []
    ends: list[str] = []
    other.on_line, other.on_close = heard.append, ends.append
    one.send(b"a\nb\n")
    one.close()
    one.send(b"c\n")
    assert (heard, ends) == ([b"a", b"b"], ["the connection closed"])
