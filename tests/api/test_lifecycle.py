"""Opening and closing of a Hutch, and event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from tests.api.programs import python
from tests.support.processes import TIMEOUT_SECONDS, temporary_files

import hutch


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_hutch_works_without_async_with() -> None:
    h = hutch.Hutch()
    assert (await h.run("1 + 1")).result == 2
    await h.close()
    await h.close()


async def test_two_instances_are_independent() -> None:
    async with hutch.Hutch() as one, hutch.Hutch(max_log_lines=1) as other:
        results = await asyncio.gather(
            *(h.run("console.log(1); console.log(2)") for h in (one, other, one, other))
        )
        assert [len(each.logs) for each in results] == [2, 1, 2, 1]
        await one.close()
        assert (await other.run("1")).result == 1


async def test_closed_instance_is_reported() -> None:
    async with hutch.Hutch() as h:
        pass
    with pytest.raises(hutch.HutchError, match="This Hutch was closed"):
        await h.run("1")
    with pytest.raises(hutch.HutchError, match="This Hutch was closed"):
        await h.open()


def test_closing_removes_all_processes_and_files() -> None:
    code = """
import asyncio, hutch, os
from tests.api.programs import python
from tests.support.processes import descendants, temporary_files

async def main():
    async with hutch.Hutch() as h:
        await asyncio.gather(h.run("1"), h.run("1", engine="deno"))
        assert descendants(os.getpid()) and temporary_files(os.getpid())
    assert (descendants(os.getpid()), temporary_files(os.getpid())) == ([], [])

asyncio.run(main())
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")


async def test_instance_of_another_event_loop_is_reported() -> None:
    async with hutch.Hutch() as h:
        assert (await h.run("1")).result == 1

        def elsewhere() -> None:
            asyncio.run(h.run("1"))  # type: ignore[arg-type]

        with pytest.raises(hutch.HutchError, match="belongs to another event loop"):
            await asyncio.to_thread(elsewhere)


def test_program_that_never_closes_hutch_leaves_nothing_behind() -> None:
    code = "import asyncio, hutch, os; asyncio.run(hutch.Hutch().run('1')); print(os.getpid())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    assert done.stderr == ""
    assert temporary_files(int(done.stdout)) == []
