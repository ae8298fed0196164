"""The wake-up file, to which runners cannot write, and the listener, which accepts one connection and closes
its sockets in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

import hutch
from hutch.sandbox.jail.memory_meter import process_tree
from hutch.sandbox.runner.pipes import RunnerListener, WakeupFile
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.stream import StreamChannel


def test_runners_descriptor_is_read_only() -> None:
    wakeup_file = WakeupFile()
    descriptor = wakeup_file.open_for_process()
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(descriptor, 5)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    wakeup_file.set_line_count(2)
    assert os.read(descriptor, 10) == b"\0\0"
    os.close(descriptor)
    wakeup_file.close()


def test_failed_update_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int, __: int) -> None:
        raise OSError("file too large")

    wakeup_file = WakeupFile()
    monkeypatch.setattr(os, "ftruncate", refused)
    wakeup_file.set_line_count(1)
    wakeup_file.close()


# --- listener ---


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_connection_that_arrives_while_its_listener_closes_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def connect_and_close(path: Path, turns: int) -> None:
        channel = StreamChannel(1000)
        listener = RunnerListener(channel, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            channel.close()
            await listener.close()
            client.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        for turns in range(6):
            runner.run(connect_and_close(tmp_path / str(turns), turns))


async def test_listener_accepts_one_connection(tmp_path: Path) -> None:
    channel = StreamChannel(1000)
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_line = lines.put_nowait
    listener = RunnerListener(channel, tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for client in (first, second):
            client.connect(str(tmp_path / "s"))
        second.sendall(b"second\n")
        first.sendall(b"first\n")
        assert await lines.get() == b"first"
        await listener.close()
        with pytest.raises(ConnectionResetError):
            second.recv(1)
        first.sendall(b"again\n")
        assert await lines.get() == b"again"
    channel.close()


# --- real runners ---


def runner_pid(h: hutch.Hutch) -> int:
    """Returns the process id of the only quickjs runner of the default owner."""
    assert h._kernel is not None
    [runner] = h._kernel.pool.runners.shared[profile_for("quickjs"), "default"]
    return process_tree(runner.pid)[-1]


def bytes_read(pid: int) -> int:
    """Returns how many bytes of its wake-up file a runner has read."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/fdinfo/0").read_text().splitlines())
    return int(lines["pos"])


async def next_number(n: int) -> int:
    """The number after n."""
    return n + 1


async def test_runner_polls_its_wakeup_file_while_its_only_execution_calls_tools() -> None:
    async with hutch.Hutch(quickjs_processes=2) as h:
        await h.run("1", tools=[next_number])
        before = bytes_read(runner_pid(h))
        code = "let n = 0;\nwhile (n < 9) n = await tools.next_number({ n });\nreturn n"
        assert (await h.run(code, tools=[next_number])).result == 9
        assert bytes_read(runner_pid(h)) > before


async def test_runner_that_waits_for_a_slow_tool_stops_polling() -> None:
    async def slow() -> None:
        """Takes half a second."""
        await asyncio.sleep(0.5)

    async with hutch.Hutch(quickjs_processes=2) as h:
        await h.run("1", tools=[next_number, slow])
        before = cpu_seconds(runner_pid(h))
        # A runner polls only after its first call, so make two calls before the slow call.
        code = "await tools.next_number({ n: 1 }); await tools.next_number({ n: 2 }); await tools.slow()"
        assert (await h.run(code, tools=[next_number, slow])).ok
        assert cpu_seconds(runner_pid(h)) - before < 0.25


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
