"""The kernel: who may watch for answers, and that whatever ends an execution, its runner is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.processes import PATIENCE

import hutch
from hutch.sandbox.bell import Bell
from hutch.sandbox.process import RunnerProcess
from hutch.session.host import Outcome, Session

CALLS = "let n = 0;\nwhile (n < 5) n = await tools.next_number({ n });\nreturn n"


async def next_number(n: int) -> int:
    """The number after n."""
    return n + 1


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


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("two_cores")
async def test_answers_are_rung_for_only_while_fewer_executions_run_than_there_are_cores(
    rings: list[int],
) -> None:
    there, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        """Stays until it is told to leave."""
        there.set()
        await leave.wait()

    async with hutch.Hutch(quickjs_processes=8) as h:
        alone = await h.run(CALLS, tools=[next_number])
        assert (alone.result, len(rings)) == (5, 5)
        other = asyncio.create_task(h.run("await tools.stay()", tools=[stay], owner="other"))
        await there.wait()
        rings.clear()
        beside = await h.run(CALLS, tools=[next_number])
        assert (beside.result, rings) == (5, [])
        leave.set()
        assert (await other).ok


@pytest.mark.usefixtures("two_cores")
async def test_nobody_watches_where_the_operator_gives_one_core(rings: list[int]) -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        assert (await h.run(CALLS, tools=[next_number])).result == 5
    assert rings == []


async def test_runner_of_a_cancelled_execution_is_told_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []
    ended = RunnerProcess.ended

    def told(runner: RunnerProcess, outcome: Outcome, session: Session) -> None:
        assert outcome.error is not None
        ends.append(outcome.error.code)
        ended(runner, outcome, session)

    monkeypatch.setattr(RunnerProcess, "ended", told)
    there = asyncio.Event()

    async def stay() -> Any:
        """Never comes back."""
        there.set()
        await asyncio.Event().wait()

    async with hutch.Hutch() as h:
        running = asyncio.create_task(h.run("await tools.stay()", tools=[stay]))
        await there.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert ends == ["timeout"]


ABANDONED = """
import asyncio, gc, hutch, os, uvloop
from tests.processes import descendants, runs, until

async def main():
    h = hutch.Hutch(quickjs_warm=0, deno_warm=0)
    assert (await h.run("1")).ok

def runners():
    return [pid for pid in descendants(os.getpid()) if runs(pid, "quickjs.js")]

for run in (uvloop.run, asyncio.run):
    run(main())
    gc.collect()
    until(lambda: not runners())
print("all gone")
"""


def test_runners_of_a_sandbox_that_is_left_with_its_loop_are_gone() -> None:
    # Python warns of what was left open.
    command = [sys.executable, "-W", "ignore", "-c", ABANDONED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.stdout == "all gone\n", done.stderr


FORKED = """
import hutch, os, sys

def plain(n: int) -> int:
    return n + 1

def called() -> object:
    return hutch.run_sync("await tools.plain({ n: 1 })", tools=[plain]).result

assert called() == 2
pid = os.fork()
if pid == 0:
    os._exit(0 if called() == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_tools_that_run_in_threads_run_in_a_forked_process_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
