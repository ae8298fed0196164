"""Low-latency channel: immediate writes, the wake-up file, and polling."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tests.support.waiting import eventually

from hutch.sandbox.runner.pipes import WakeupFile
from hutch.session.channels import low_latency
from hutch.session.channels.low_latency import Backoff, LowLatencyChannel
from hutch.session.channels.stream import connect_pipes
from hutch.session.multiplexer import Multiplexer


class WakeupFileEnds:
    """A wake-up file, and the descriptor from which a runner would read it."""

    def __init__(self) -> None:
        self.file = WakeupFile()
        self.runner_fd = self.file.open_for_process()

    def length(self) -> int:
        return os.fstat(self.runner_fd).st_size


@pytest.fixture
def wakeup_file() -> Iterator[WakeupFileEnds]:
    wakeup = WakeupFileEnds()
    yield wakeup
    os.close(wakeup.runner_fd)


async def connected(wakeup_file: WakeupFileEnds) -> tuple[LowLatencyChannel, socket.socket]:
    host_end, runner_end = socket.socketpair()
    channel = LowLatencyChannel(1000, wakeup_file.file)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=host_end)
    runner_end.setblocking(False)
    return channel, runner_end


async def received(other: socket.socket, count: int) -> bytes:
    data = bytearray()
    async with asyncio.timeout(10):
        while len(data) < count:
            data += await asyncio.get_running_loop().sock_recv(other, 1 << 20)
    return bytes(data)


async def test_immediate_line_arrives_and_notifies_before_the_next_loop_iteration(
    wakeup_file: WakeupFileEnds,
) -> None:
    channel, other = await connected(wakeup_file)
    with other:
        channel.send_result(b"one\n")
        assert (other.recv(100), wakeup_file.length()) == (b"one\n", 1)
        channel.send_result(b"two\n")
        assert (other.recv(100), wakeup_file.length()) == (b"two\n", 2)
        channel.close()


async def test_lines_sent_without_notification_are_counted(wakeup_file: WakeupFileEnds) -> None:
    channel, other = await connected(wakeup_file)
    with other:
        channel.send(b"one\ntwo\n")
        assert wakeup_file.length() == 0
        assert await received(other, 8) == b"one\ntwo\n"
        channel.send_result(b"three\n")
        assert wakeup_file.length() == 3
        channel.close()


async def test_immediate_line_does_not_overtake_buffered_ones(wakeup_file: WakeupFileEnds) -> None:
    channel, other = await connected(wakeup_file)
    with other:
        channel.send(b"first\n")
        channel.send_result(b"second\n")
        assert await received(other, 13) == b"first\nsecond\n"
        channel.close()


async def test_line_larger_than_the_socket_buffer_arrives_complete(wakeup_file: WakeupFileEnds) -> None:
    channel, other = await connected(wakeup_file)
    long = b"x" * 4_000_000 + b"\n"
    with other:
        channel.send_result(long)
        assert await received(other, len(long)) == long
        channel.close()


@pytest.mark.parametrize("closed_by_host", [True, False])
async def test_closed_channel_does_not_write_to_a_reused_descriptor(
    wakeup_file: WakeupFileEnds, closed_by_host: bool
) -> None:
    channel, other = await connected(wakeup_file)
    ended = asyncio.Event()
    channel.on_close = lambda _: ended.set()
    other.close()
    if closed_by_host:
        channel.close()
    else:
        async with asyncio.timeout(10):
            await ended.wait()
    # Files get the lowest free numbers, so these files get the descriptor numbers that the channel had.
    reader, writer = os.pipe()
    more = [os.dup(writer) for _ in range(4)]
    channel.send_result(b"too late\n")
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    assert wakeup_file.length() == 0
    for fd in (reader, writer, *more):
        os.close(fd)


# --- polling ---


@pytest.fixture
async def polling_channel(
    wakeup_file: WakeupFileEnds,
) -> AsyncIterator[tuple[LowLatencyChannel, int, list[bytes]]]:
    """Yields a channel, the write end of the pipe from which the channel reads, and the list of the lines
    that the channel has received.
    """
    channel, other = await connected(wakeup_file)
    read, write = os.pipe()
    lines: list[bytes] = []
    channel.on_line = lines.append
    with other:
        await connect_pipes(channel, os.fdopen(read, "rb", 0))
        yield channel, write, lines
        channel.close()
    os.close(write)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Readings of the clock: one at the start of each poll, and one for each read without a message."""
    readings: list[float] = []

    def clock() -> float:
        readings.append(0)
        return float(len(readings))

    monkeypatch.setattr(low_latency, "perf_counter", clock)
    return readings


async def turn() -> None:
    """Lets all due callbacks run, with either event loop."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_poll_delivers_lines_immediately(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]],
) -> None:
    channel, write, lines = polling_channel
    os.write(write, b"one\ntw")
    channel._poll(Backoff(), 1)
    assert lines == [b"one"]
    os.write(write, b"o\n")
    await eventually(lambda: len(lines) > 1)
    assert lines == [b"one", b"two"]


async def test_channel_polls_again_until_the_expected_messages_have_arrived(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]], polls: list[float]
) -> None:
    channel, write, lines = polling_channel
    os.write(write, b"started\ndone\n")
    channel._poll(Backoff(), 2)
    await turn()
    assert (lines, len(polls)) == ([b"started", b"done"], 1)
    os.write(write, b"started\n")
    channel._poll(Backoff(), 2)
    await turn()
    assert lines[2:] == [b"started"]
    assert len(polls) > 2


def test_polls_without_a_message_are_followed_by_skipped_polls() -> None:
    backoff = Backoff()

    def polled(*, has_message: bool = False) -> bool:
        may_poll = backoff.may_poll()
        if may_poll:
            backoff.record(has_message=has_message)
        return may_poll

    assert "".join(str(int(polled())) for _ in range(30)) == "101000100000001000000000000000"
    assert polled(has_message=True)
    assert polled()
    assert not polled()


async def test_channel_polls_after_both_kinds_of_messages_and_backs_off_separately(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]], polls: list[float]
) -> None:
    channel = polling_channel[0]

    async def has_polled(send: Callable[[bytes], None]) -> bool:
        before = len(polls)
        send(b"line\n")
        await turn()
        return len(polls) > before

    assert [await has_polled(channel.send_execute) for _ in range(2)] == [True, False]
    assert [await has_polled(channel.send_result) for _ in range(2)] == [True, False]
    assert await has_polled(channel.send_execute)


async def test_closed_channel_does_not_poll(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]],
) -> None:
    channel, write, lines = polling_channel
    os.write(write, b"too late\n")
    channel.close()
    channel._poll(Backoff(), 1)
    assert lines == []


@pytest.mark.parametrize("kind", ["execute", "result"])
async def test_multiplexer_writes_immediately_only_if_the_host_may_poll(
    wakeup_file: WakeupFileEnds, kind: str
) -> None:
    channel, other = await connected(wakeup_file)
    multiplexer = Multiplexer(channel)
    send = multiplexer.send_execute if kind == "execute" else multiplexer.send_result
    with other:
        send(lambda: False, b"one\n")
        assert wakeup_file.length() == 0
        send(lambda: True, b"two\n")
        assert wakeup_file.length() == 2
        assert await received(other, 8) == b"one\ntwo\n"
        channel.close()


async def test_two_messages_are_expected_after_execute_and_one_after_a_result(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, expected = polling_channel[0], list[int]()
    monkeypatch.setattr(channel, "_poll", lambda backoff, replies: expected.append(replies))
    channel.send_execute(b"execute\n")
    channel.send_result(b"result\n")
    await turn()
    assert expected == [2, 1]


async def test_polling_backs_off_if_only_the_first_of_two_messages_comes_quickly(
    polling_channel: tuple[LowLatencyChannel, int, list[bytes]], polls: list[float]
) -> None:
    channel, write, _ = polling_channel
    backoff = Backoff()

    async def has_polled() -> bool:
        if not backoff.may_poll():
            return False
        os.write(write, b"started\n")
        channel._poll(backoff, 2)
        await turn()
        return True

    assert "".join([str(int(await has_polled())) for _ in range(12)]) == "101000100000"
