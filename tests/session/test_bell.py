"""The bell: rung for a runner that may watch, by a host that has said what it rings for."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

import hutch
from hutch.sandbox.meter import process_tree
from hutch.session.bell import Bell
from hutch.session.channel import StreamChannel

STAYS = "await tools.stay()"


class Rope:
    """A bell, and how often it was rung for how many lines."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.read = self.bell.for_process()

    def length(self) -> int:
        return os.fstat(self.read).st_size


async def connected(rope: Rope) -> tuple[StreamChannel, socket.socket]:
    ours, theirs = socket.socketpair()
    channel = StreamChannel(1000, rope.bell)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    theirs.setblocking(False)
    return channel, theirs


async def test_what_is_said_now_is_there_and_rung_for_before_the_loop_turns() -> None:
    rope = Rope()
    channel, other = await connected(rope)
    with other:
        channel.send_now(b"one\n")
        assert (other.recv(100), rope.length()) == (b"one\n", 1)
        channel.send_now(b"two\n")
        assert (other.recv(100), rope.length()) == (b"two\n", 2)
        channel.close()
    os.close(rope.read)


async def test_lines_that_are_not_rung_for_are_counted_all_the_same() -> None:
    rope = Rope()
    channel, other = await connected(rope)
    with other:
        channel.send(b"one\ntwo\n")
        assert rope.length() == 0
        assert await asyncio.get_running_loop().sock_recv(other, 100) == b"one\ntwo\n"
        channel.send_now(b"three\n")
        assert rope.length() == 3
        channel.close()
    os.close(rope.read)


async def test_what_is_said_now_does_not_overtake_what_waits() -> None:
    rope = Rope()
    channel, other = await connected(rope)
    loop = asyncio.get_running_loop()
    with other:
        channel.send(b"first\n")
        channel.send_now(b"second\n")
        said = b""
        async with asyncio.timeout(10):
            while len(said) < len(b"first\nsecond\n"):
                said += await loop.sock_recv(other, 100)
        assert said == b"first\nsecond\n"
        channel.close()
    os.close(rope.read)


async def test_a_line_that_does_not_fit_arrives_whole() -> None:
    rope = Rope()
    channel, other = await connected(rope)
    loop = asyncio.get_running_loop()
    long = b"x" * 4_000_000 + b"\n"
    with other:
        channel.send_now(long)
        said = bytearray()
        async with asyncio.timeout(10):
            while len(said) < len(long):
                said += await loop.sock_recv(other, 1 << 20)
        assert said == long
        channel.close()
    os.close(rope.read)


@pytest.mark.parametrize("ours", [True, False])
async def test_after_the_end_nothing_is_written_to_a_number_that_may_be_anothers(ours: bool) -> None:
    rope = Rope()
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
    for each in (reader, writer, rope.read, *more):
        os.close(each)


def test_the_runners_end_can_only_be_read() -> None:
    rope = Rope()
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(rope.read, 5)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(rope.read, b"x")
    rope.bell.ring(2)
    assert os.read(rope.read, 10) == b"\0\0"
    os.close(rope.read)
    rope.bell.close()


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What bells were rung for."""
    rung: list[int] = []
    ring = Bell.ring

    def heard(bell: Bell, lines: int) -> None:
        rung.append(lines)
        ring(bell, lines)

    monkeypatch.setattr(Bell, "ring", heard)
    return rung


def number(n: int) -> int:
    """The number after n."""
    return n + 1


async def test_an_execution_alone_is_rung_for_and_one_beside_as_many_as_there_are_cores_is_not(
    rings: list[int],
) -> None:
    there, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        """Stays until it is told to leave."""
        there.set()
        await leave.wait()

    calls = "let n = 0;\nwhile (n < 5) n = await tools.number({ n });\nreturn n"
    async with hutch.Hutch(quickjs_processes=2) as h:
        alone = await h.run(calls, tools=[number])
        assert (alone.result, len(rings)) == (5, 5)
        other = asyncio.create_task(h.run(STAYS, tools=[stay], owner="other"))
        await there.wait()
        rings.clear()
        beside = await h.run(calls, tools=[number])
        assert (beside.result, rings) == (5, [])
        leave.set()
        assert (await other).ok
    async with hutch.Hutch(quickjs_processes=1) as h:
        rings.clear()
        assert (await h.run(calls, tools=[number])).result == 5
        assert rings == []


async def test_a_runner_that_waits_for_a_slow_tool_sleeps() -> None:
    async def slow() -> None:
        """Takes half a second."""
        await asyncio.sleep(0.5)

    async with hutch.Hutch(quickjs_warm=0, deno_warm=0) as h:
        await h.run("1", tools=[slow])
        assert h._kernel is not None
        (runners,) = h._kernel.pool._shared.values()
        before = cpu_seconds(runners[0].pid)
        assert (await h.run("await tools.slow()", tools=[slow])).ok
        assert cpu_seconds(runners[0].pid) - before < 0.25


def cpu_seconds(pid: int) -> float:
    """Of a process and all below it."""
    ticks = 0
    for each in process_tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
