"""No owner can block other owners, and no runner can extend the time limit of its executions."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from tests.hostile.processes import exists, runners
from tests.support.processes import descendants
from tests.support.waiting import eventually

import hutch


class IdleTool:
    """A tool that waits until the test releases it."""

    def __init__(self) -> None:
        self.calls = 0
        self.released = asyncio.Event()

    async def wait(self) -> None:
        """Waits."""
        self.calls += 1
        await self.released.wait()


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_owner_with_many_idle_executions_does_not_lock_out_another(engine: str) -> None:
    idle = IdleTool()
    async with hutch.Hutch(max_processes=3, queue_seconds=15.0) as h:
        hogs = [
            asyncio.create_task(
                h.run("await tools.wait()", tools=[idle.wait], engine="deno", owner="hog", timeout_ms=60_000)
            )
            for _ in range(4)
        ]
        assert h._kernel is not None
        pool = h._kernel.pool
        await eventually(lambda: idle.calls >= 2 and idle.calls + pool.stats().waiting == 4)
        result = await h.run("return 1", engine=engine, owner="newcomer")
        assert result.result == 1
        assert idle.calls == 2
        idle.released.set()
        assert all(result.ok for result in await asyncio.gather(*hogs))


async def test_unused_runner_killed_just_before_its_execution_is_replaced() -> None:
    async with hutch.Hutch(deno_warm=1) as h:
        assert (await h.run("return 1", engine="deno")).ok
        assert h._kernel is not None
        pool = h._kernel.pool
        await eventually(lambda: pool.stats().warm.get("deno"))
        [spare] = next(ready for profile, ready in pool.runners.warm.items() if profile.engine == "deno")
        # There is no `await` between the kill and the run, so the host uses the killed runner before the
        # event loop can notice its death.
        os.kill(descendants(spare.pid)[-1], signal.SIGKILL)  # type: ignore[attr-defined]
        result = await h.run("return 2", engine="deno")
        assert result.result == 2, result


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_stopped_runner_is_replaced(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.process.MAX_SILENCE_SECONDS", 0.5)
    async with hutch.Hutch(quickjs_processes=1, deno_warm=1) as h:
        assert (await h.run("return 1", engine=engine)).ok
        assert h._kernel is not None
        pool = h._kernel.pool
        if engine == "deno":
            await eventually(lambda: pool.stats().warm.get("deno"))
            [stopped] = next(
                ready for profile, ready in pool.runners.warm.items() if profile.engine == "deno"
            )
            guest = descendants(stopped.pid)[-1]  # type: ignore[attr-defined]
        else:
            [guest] = runners(h)
        os.kill(guest, signal.SIGSTOP)
        before = time.monotonic()
        result = await h.run("return 2", engine=engine, timeout_ms=1_000)
        assert result.result == 2, result
        assert time.monotonic() - before < 20
        await eventually(lambda: not exists(guest))


async def test_execution_on_a_stopped_runner_ends_at_its_time_limit() -> None:
    idle = IdleTool()
    async with hutch.Hutch(quickjs_processes=1) as h:
        run = asyncio.create_task(h.run("await tools.wait()", tools=[idle.wait], timeout_ms=500))
        await eventually(lambda: idle.calls == 1)
        [guest] = runners(h)
        os.kill(guest, signal.SIGSTOP)
        before = time.monotonic()
        result = await run
        assert result.error is not None
        assert result.error.code == "timeout"
        assert time.monotonic() - before < 20


async def test_time_limit_holds_among_busy_neighbours() -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        await h.run("1")
        busy = [asyncio.create_task(h.run("for (;;);", timeout_ms=60_000)) for _ in range(8)]
        served = 0
        async with asyncio.timeout(60):
            # Each of these short executions has to wait until the busy runner reads its next message.
            while served < 60:
                assert (await h.run("return 1")).ok
                served += 1
        seconds = []
        for _ in range(3):
            before = time.monotonic()
            result = await h.run("for (;;);", timeout_ms=200)
            assert result.error is not None
            assert result.error.code == "timeout"
            seconds.append(time.monotonic() - before)
        assert min(seconds) < 1
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
