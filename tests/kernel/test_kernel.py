"""Kernel: polling runners, cancelled executions, and abandoned sandboxes."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.waiting import eventually

import hutch
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.kernel.records import RunRecord, RunRecorder
from hutch.sandbox.runner.pipes import WakeupFile
from hutch.sandbox.runner.process import RunnerProcess
from hutch.sandbox.runner.profile import profile_for
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.run import Result, RunEvent, RunHandle
from hutch.session.tools.provider import Provider
from hutch.settings import load_settings

CALLS = "let n = 0;\nwhile (n < 5) n = await tools.next_number({ n });\nreturn n"


async def next_number(n: int) -> int:
    """Returns n + 1."""
    return n + 1


@pytest.fixture
def notifications(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the line counts that the host writes to the wake-up files of runners."""
    counts: list[int] = []
    set_line_count = WakeupFile.set_line_count

    def recording(file: WakeupFile, lines: int) -> None:
        counts.append(lines)
        set_line_count(file, lines)

    monkeypatch.setattr(WakeupFile, "set_line_count", recording)
    return counts


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("two_cores")
async def test_runners_poll_only_while_fewer_executions_run_than_there_are_cores(
    notifications: list[int],
) -> None:
    has_started, released = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        """Waits until the test releases this tool."""
        has_started.set()
        await released.wait()

    async with hutch.Hutch(quickjs_processes=8) as h:
        alone = await h.run(CALLS, tools=[next_number])
        # The notifications are for `execute` and for the results of five calls.
        assert (alone.result, len(notifications)) == (5, 6)
        other = asyncio.create_task(h.run("await tools.stay()", tools=[stay], owner="other"))
        await has_started.wait()
        notifications.clear()
        beside = await h.run(CALLS, tools=[next_number])
        assert (beside.result, notifications) == (5, [])
        released.set()
        assert (await other).ok


@pytest.mark.usefixtures("two_cores")
async def test_runners_do_not_poll_with_one_quickjs_process(notifications: list[int]) -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        assert (await h.run(CALLS, tools=[next_number])).result == 5
    assert notifications == []


async def test_runner_of_a_cancelled_execution_is_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []
    ended = RunnerProcess.execution_ended

    def recording(runner: RunnerProcess, result: Result, session: Session) -> Result:
        assert result.error is not None
        ends.append(result.error.code)
        return ended(runner, result, session)

    monkeypatch.setattr(RunnerProcess, "execution_ended", recording)
    has_started = asyncio.Event()

    async def stay() -> Any:
        """Never returns."""
        has_started.set()
        await asyncio.Event().wait()

    async with hutch.Hutch() as h:
        running = asyncio.create_task(h.run("await tools.stay()", tools=[stay]))
        await has_started.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert ends == ["timeout"]


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_wait_for_an_approval_does_not_count_towards_the_time_limit(
    engine: Literal["quickjs", "deno"],
) -> None:
    app = await App.create(load_settings({"deno_warm": 0}))
    kernel = app.kernel

    async def ask(context: hutch.ToolContext) -> None:
        """Simulates an approval that takes longer than the time limit."""
        kernel.pause_timeout(context.run_id, context.tool)
        await asyncio.sleep(0.8)
        kernel.resume_timeout(context.run_id)

    async def run(code: str) -> Result:
        execution = Execution(
            code=f"await tools.ask(); {code}",
            profile=profile_for(engine),
            limits=Limits(timeout_ms=500),
            providers=[Provider.of(ask)],
        )
        return await kernel.run(execution, RunHandle())

    try:
        approved, endless = await run("return 1"), await run("for (;;) {}")
    finally:
        await app.close()
    assert (approved.error, approved.result) == (None, 1)
    assert endless.error is not None
    assert endless.error.code == "timeout"


ABANDONED = """
import asyncio, gc, hutch, os, uvloop
from tests.support.processes import descendants, is_runner, wait_until

async def main():
    h = hutch.Hutch(quickjs_warm=0, deno_warm=0)
    assert (await h.run("1")).ok

def runners():
    return [pid for pid in descendants(os.getpid()) if is_runner(pid, "quickjs.js")]

for run in (uvloop.run, asyncio.run):
    run(main())
    gc.collect()
    wait_until(lambda: not runners())
print("all gone")
"""


def test_runners_of_a_sandbox_abandoned_with_its_loop_are_ended() -> None:
    # `-W ignore`, because Python warns about the resources that the program does not close.
    command = [sys.executable, "-W", "ignore", "-c", ABANDONED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS)
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
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr


async def test_observer_can_listen_to_every_run_and_find_it_while_it_is_active() -> None:
    events: list[RunEvent] = []
    found: list[bool] = []

    async with hutch.Hutch() as h:
        await h.open()
        assert h._kernel is not None
        kernel = h._kernel
        kernel.on_begin.append(lambda execution, run: run.listeners.append(events.append))

        def is_active(context: hutch.ToolContext) -> None:
            execution, run = kernel.active[context.run_id]
            found.append(execution.owner == "someone" and isinstance(run, RunHandle))

        await h.run("console.log('line'); await tools.is_active()", tools=[is_active], owner="someone")
        assert kernel.active == {}
    assert found == [True]
    names = [type(event).__name__ for event in events]
    assert names == ["RunQueued", "RunStarted", "RunLog", "ToolCallStarted", "ToolCallEnded", "RunEnded"]


async def test_ended_runs_are_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    app = await App.create(load_settings({"home": str(tmp_path)}))
    await app.storage.start()
    sessions: list[weakref.ref[Session]] = []

    async def run() -> None:
        handle = RunHandle()
        providers = [Provider.of(next_number)]
        await app.kernel.run(
            Execution(code=CALLS, profile=profile_for("quickjs"), providers=providers), handle
        )
        assert handle.timeline is not None
        assert handle.session is not None
        sessions.append(weakref.ref(handle.session))

    gc.disable()
    try:
        await run()
        # The session is released only when the run is recorded, which happens after the result is returned.
        await eventually(lambda: sessions[0]() is None)
    finally:
        gc.enable()
        await app.close()


async def test_run_that_finds_no_runner_is_recorded() -> None:
    has_started, released = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        """Waits until the test releases this tool."""
        has_started.set()
        await released.wait()

    async with hutch.Hutch(max_processes=1, deno_warm=0, quickjs_warm=0) as h:
        await h.open()
        assert h._kernel is not None
        assert isinstance(h._kernel._record, RunRecorder)
        records: list[RunRecord] = []
        h._kernel._record.sink = lambda record, redactor: records.append(record)
        first = asyncio.create_task(h.run("return tools.stay()", tools=[stay], engine="deno"))
        await has_started.wait()
        pool = h._kernel.pool
        pool._settings = msgspec.structs.replace(pool._settings, queue_seconds=0.05)
        with pytest.raises(hutch.Busy):
            await h.run("1", engine="deno")
        released.set()
        await first
    busy, ok = records
    assert (busy.outcome, busy.started_at, ok.outcome) == ("busy", None, "ok")
