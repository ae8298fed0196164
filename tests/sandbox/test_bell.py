"""The bell: rung with what was said, at an end that can only be read, and watched by runners for a moment."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import hutch
from hutch.sandbox.bell import Bell
from hutch.sandbox.meter import process_tree
from hutch.sandbox.profile import profile_for
from hutch.session.channel import StreamChannel


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


async def connected(rope: Rope) -> tuple[StreamChannel, socket.socket]:
    ours, theirs = socket.socketpair()
    channel = StreamChannel(1000, rope.bell)
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


def test_the_runners_end_can_only_be_read(rope: Rope) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(rope.seen, 5)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(rope.seen, b"x")
    rope.bell.ring(2)
    assert os.read(rope.seen, 10) == b"\0\0"
    rope.bell.close()


# --- as runners have it ---


def guest_of(h: hutch.Hutch) -> int:
    """The process in which the only quickjs runner of the default owner is."""
    assert h._kernel is not None
    [runner] = h._kernel.pool._shared[profile_for("quickjs"), "default"]
    return process_tree(runner.pid)[-1]


def looked_at(pid: int) -> int:
    """How much of its bell a runner has seen."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/fdinfo/0").read_text().splitlines())
    return int(lines["pos"])


async def next_number(n: int) -> int:
    """The number after n."""
    return n + 1


async def test_a_runner_looks_at_its_bell_while_its_only_execution_calls_tools() -> None:
    async with hutch.Hutch(quickjs_processes=2) as h:
        await h.run("1", tools=[next_number])
        before = looked_at(guest_of(h))
        code = "let n = 0;\nwhile (n < 9) n = await tools.next_number({ n });\nreturn n"
        assert (await h.run(code, tools=[next_number])).result == 9
        assert looked_at(guest_of(h)) > before


async def test_a_runner_that_waits_for_a_slow_tool_sleeps_after_a_moment() -> None:
    async def slow() -> None:
        """Takes half a second."""
        await asyncio.sleep(0.5)

    async with hutch.Hutch(quickjs_processes=2) as h:
        await h.run("1", tools=[next_number, slow])
        before = cpu_seconds(guest_of(h))
        # After the first call it watches.
        code = "await tools.next_number({ n: 1 }); await tools.next_number({ n: 2 }); await tools.slow()"
        assert (await h.run(code, tools=[next_number, slow])).ok
        assert cpu_seconds(guest_of(h)) - before < 0.25


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
