"""The bell: at an end that can only be read, and watched by runners for a moment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import hutch
from hutch.sandbox.bell import Bell
from hutch.sandbox.meter import process_tree
from hutch.sandbox.profile import profile_for


def test_the_runners_end_can_only_be_read() -> None:
    bell = Bell()
    seen = bell.for_process()
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(seen, 5)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(seen, b"x")
    bell.ring(2)
    assert os.read(seen, 10) == b"\0\0"
    os.close(seen)
    bell.close()


def test_a_ring_that_fails_is_nothing_to_who_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int, __: int) -> None:
        raise OSError("file too large")

    bell = Bell()
    monkeypatch.setattr(os, "ftruncate", refused)
    bell.ring(1)
    bell.close()


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
