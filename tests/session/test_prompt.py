"""A channel to a runner that may be awake: said at once, rung for, and listened to for a moment."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.waiting import eventually

from hutch.sandbox.bell import Bell
from hutch.session import prompt
from hutch.session.channel import connect_pipes
from hutch.session.prompt import PromptChannel


class Rope:
    """A bell with both of its ends."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.seen = self.bell.for_process()

    def length(self) -> int:
        return os.fstat(self.seen).st_size


@pytest.fixture
def rope() -> Iterator[Rope]:
    made = Rope()
    yield made
    os.close(made.seen)


async def connected(rope: Rope) -> tuple[PromptChannel, socket.socket]:
    ours, theirs = socket.socketpair()
    channel = PromptChannel(1000, rope.bell)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    theirs.setblocking(False)
    return channel, theirs


async def received(other: socket.socket, count: int) -> bytes:
    said = bytearray()
    async with asyncio.timeout(10):
        while len(said) < count:
            said += await asyncio.get_running_loop().sock_recv(other, 1 << 20)
    return bytes(said)


async def test_what_is_said_now_is_there_and_rung_for_before_the_loop_turns(rope: Rope) -> None:
    channel, other = await connected(rope)
    with other:
        channel.send_now(b"one\n")
        assert (other.recv(100), rope.length()) == (b"one\n", 1)
        channel.send_now(b"two\n")
        assert (other.recv(100), rope.length()) == (b"two\n", 2)
        channel.close()


async def test_lines_that_are_not_rung_for_are_counted_all_the_same(rope: Rope) -> None:
    channel, other = await connected(rope)
    with other:
        channel.send(b"one\ntwo\n")
        assert rope.length() == 0
        assert await received(other, 8) == b"one\ntwo\n"
        channel.send_now(b"three\n")
        assert rope.length() == 3
        channel.close()


async def test_what_is_said_now_does_not_overtake_what_waits(rope: Rope) -> None:
    channel, other = await connected(rope)
    with other:
        channel.send(b"first\n")
        channel.send_now(b"second\n")
        assert await received(other, 13) == b"first\nsecond\n"
        channel.close()


async def test_a_line_that_does_not_fit_arrives_whole(rope: Rope) -> None:
    channel, other = await connected(rope)
    long = b"x" * 4_000_000 + b"\n"
    with other:
        channel.send_now(long)
        assert await received(other, len(long)) == long
        channel.close()


@pytest.mark.parametrize("ours", [True, False])
async def test_after_the_end_nothing_is_written_to_a_number_that_may_be_anothers(
    rope: Rope, ours: bool
) -> None:
    channel, other = await connected(rope)
    ended = asyncio.Event()
    channel.on_close = lambda _: ended.set()
    other.close()
    if ours:
        channel.close()
    else:
        async with asyncio.timeout(10):
            await ended.wait()
    # The lowest numbers that are free now are those that the channel had.
    reader, writer = os.pipe()
    more = [os.dup(writer) for _ in range(4)]
    channel.send_now(b"for nobody\n")
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    assert rope.length() == 0
    for each in (reader, writer, *more):
        os.close(each)


# --- listening ---


@pytest.fixture
async def heard(rope: Rope) -> AsyncIterator[tuple[PromptChannel, int, list[bytes]]]:
    """A channel, where the other end of its pipe is, and what it has heard."""
    channel, other = await connected(rope)
    read, write = os.pipe()
    lines: list[bytes] = []
    channel.on_line = lines.append
    with other:
        await connect_pipes(channel, os.fdopen(read, "rb", 0))
        yield channel, write, lines
        channel.close()
    os.close(write)


async def test_what_is_said_meanwhile_is_heard_before_the_loop_turns(
    heard: tuple[PromptChannel, int, list[bytes]],
) -> None:
    channel, write, lines = heard
    os.write(write, b"one\ntw")
    channel._listen()
    assert lines == [b"one"]
    os.write(write, b"o\n")
    await eventually(lambda: len(lines) > 1)
    assert lines == [b"one", b"two"]


async def test_after_each_time_in_vain_twice_as_many_go_by_and_after_one_that_was_not_none(
    heard: tuple[PromptChannel, int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, write, lines = heard
    looks: list[float] = []

    def clock() -> float:
        looks.append(0)
        return float(len(looks))

    monkeypatch.setattr(prompt, "perf_counter", clock)

    def listened() -> bool:
        before = len(looks)
        channel._listen()
        return len(looks) > before

    assert "".join(str(int(listened())) for _ in range(12)) == "101000100000"
    for _ in range(2):
        assert not listened()
    os.write(write, b"here\n")
    assert listened()
    assert lines == [b"here"]
    assert listened()
    assert not listened()


async def test_nobody_is_listened_to_after_the_end(heard: tuple[PromptChannel, int, list[bytes]]) -> None:
    channel, write, lines = heard
    os.write(write, b"too late\n")
    channel.close()
    channel._listen()
    assert lines == []
