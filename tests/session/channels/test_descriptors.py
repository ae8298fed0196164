"""Channel over descriptors of all kinds. The host must close each of its descriptors exactly once. After the
first close, another file may get the number of the descriptor, and a second close would close that file.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.packaged import open_tools
from tests.support.waiting import eventually

from hutch.session.channels import descriptors
from hutch.session.channels.descriptors import DescriptorChannel
from hutch.session.channels.stream import StreamChannel, connect_pipes


class CheckedFile(io.FileIO):
    """A file that records an attempt to close a descriptor that is already closed."""

    double_closes: list[int]

    def close(self) -> None:
        if self.closefd and not self.closed:
            try:
                os.fstat(self.fileno())
            except OSError:
                self.double_closes.append(self.fileno())
                # Do not close the descriptor again: its number may belong to another file.
                return
        super().close()


def open_checked(handle: int, mode: str, *_: object, closefd: bool = True) -> CheckedFile:
    return CheckedFile(handle, mode, closefd)


@pytest.fixture
def double_closes() -> list[int]:
    """Returns the list of descriptors that code tried to close a second time."""
    CheckedFile.double_closes = []
    return CheckedFile.double_closes


async def test_pipes_of_a_channel_are_closed_once(double_closes: list[int]) -> None:
    read, write_end = os.pipe()
    read_end, write = os.pipe()
    channel = StreamChannel(1024)
    await connect_pipes(channel, CheckedFile(read, "rb"), CheckedFile(write, "wb"))
    channel.close()
    # Wait, because the event loop closes its files a little later.
    await asyncio.sleep(0.01)
    os.close(write_end)
    os.close(read_end)
    assert double_closes == []


async def test_start_of_a_process_with_network_closes_every_descriptor_once(
    double_closes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tools(tmp_path, max_spares=0) as server:
        assert await server.execute("other") == "other"
        monkeypatch.setattr(os, "fdopen", open_checked)
        assert await server.execute("other") == "other"
        monkeypatch.undo()
    assert double_closes == []


# --- channel ---

Ends = tuple[io.FileIO, io.FileIO]
"""The read end and the write end."""


def pipe() -> Ends:
    read, write = os.pipe()
    return io.FileIO(read, "rb"), io.FileIO(write, "wb")


def socket_pair() -> Ends:
    one, other = socket.socketpair()
    return io.FileIO(one.detach(), "rb"), io.FileIO(other.detach(), "wb")


class Connected:
    """A channel whose input and output are pipes or sockets, together with the peer's ends of the input and
    of the output.
    """

    def __init__(self, input: Ends, output: Ends) -> None:
        self.channel = DescriptorChannel(input[0].fileno(), output[1].fileno(), 1_000)
        self.input, self.output = input[1], output[0]
        self._write_to = output[1]
        self.lines: list[bytes] = []
        self.ended: list[str] = []
        self.channel.on_line = self.lines.append
        self.channel.on_close = self.ended.append
        self.channel.open()

    async def close(self) -> None:
        self.channel.close()
        await self.channel.finished()
        self._write_to.close()


@pytest.fixture(params=[pipe, socket_pair])
def connected(request: pytest.FixtureRequest) -> Iterator[Callable[[], Connected]]:
    input, output = request.param(), request.param()
    yield lambda: Connected(input, output)
    for end in (*input, *output):
        end.close()


async def test_lines_are_received_until_the_input_ends(connected: Callable[[], Connected]) -> None:
    ends = connected()
    ends.input.write(b"one\n\ntw")
    await eventually(lambda: ends.lines == [b"one"])
    ends.input.write(b"o\nlast")
    ends.input.close()
    await eventually(lambda: ends.ended)
    assert (ends.lines, ends.ended) == ([b"one", b"two", b"last"], ["the input ended"])
    ends.channel.close()


async def test_long_line_ends_the_channel(connected: Callable[[], Connected]) -> None:
    ends = connected()
    ends.input.write(b"one\n")
    await eventually(lambda: ends.lines)
    ends.input.write(b"x" * 1_001)
    await eventually(lambda: ends.ended)
    assert "max_line_bytes" in ends.ended[0]
    ends.channel.close()


async def test_short_and_long_lines_arrive_in_order(connected: Callable[[], Connected]) -> None:
    ends = connected()
    lines = [b"%d:%s\n" % (number, b"x" * (200_000 if number % 7 == 3 else 10)) for number in range(40)]
    for line in lines:
        ends.channel.send(line)
    reading = asyncio.create_task(asyncio.to_thread(ends.output.readall))
    await ends.close()
    assert await reading == b"".join(lines)


async def test_peer_that_does_not_read_does_not_block_the_event_loop(
    connected: Callable[[], Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "HIGH_WATER_BYTES", 10_000)
    ends = connected()
    line = b"x" * 4_000 + b"\n"
    count = 300
    for _ in range(count):
        ends.channel.send(line)
    # Only the first line is received, because the channel reads nothing while too much output is queued.
    ends.input.write(b"one\n")
    await eventually(lambda: ends.lines)
    ends.input.write(b"two\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ends.channel.writable()
    assert ends.lines == [b"one"]
    reading = asyncio.create_task(asyncio.to_thread(ends.output.readall))
    await ends.channel.writable()
    await eventually(lambda: ends.lines == [b"one", b"two"])
    await ends.close()
    assert len(await reading) == count * len(line)


async def test_closed_output_ends_the_channel(connected: Callable[[], Connected]) -> None:
    ends = connected()
    ends.output.close()
    ends.channel.send(b"one\n")
    await eventually(lambda: ends.ended)
    assert "cannot be written" in ends.ended[0]
    ends.channel.close()


async def test_short_line_is_in_the_pipe_before_the_next_loop_iteration() -> None:
    input, output = pipe(), pipe()
    ends = Connected(input, output)
    os.set_blocking(ends.output.fileno(), False)
    ends.channel.send(b"answer\n")
    assert ends.output.read(100) == b"answer\n"
    await ends.close()
    for end in (*input, *output):
        end.close()


async def test_files_are_read_and_written() -> None:
    with tempfile.TemporaryFile() as input, tempfile.TemporaryFile() as output:
        input.write(b"one\ntwo")
        input.seek(0)
        channel = DescriptorChannel(input.fileno(), output.fileno(), 100)
        lines: list[bytes] = []
        ended: list[str] = []
        channel.on_line, channel.on_close = lines.append, ended.append
        channel.open()
        await eventually(lambda: ended)
        channel.send(b"answer\n")
        channel.close()
        await channel.finished()
        output.seek(0)
        assert (lines, output.read()) == ([b"one", b"two"], b"answer\n")
