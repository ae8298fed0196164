"""Waiting runs are stored when memory is scarce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hutch.app.app import App
from hutch.kernel.durable import memory_pressure
from hutch.kernel.durable.memory_pressure import MemoryPressure, free_share_of_machine
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.limits import Limits
from hutch.session.run import Result, RunEvent, RunHandle, RunSuspended
from hutch.session.tools.provider import Provider
from hutch.settings import Settings

CODE = "const data = 'x'.repeat(100); return [data.length, await tools.wait({})]"


class WaitingRun:
    """A run that waits for a tool until the test releases it."""

    def __init__(self, app: App, *, is_durable: bool = True) -> None:
        self.waits, self.released, self.stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            self.waits.set()
            await self.released.wait()
            return "done"

        self.handle = RunHandle(listeners=[self._listen])
        execution = Execution(
            code=CODE,
            profile=profile_for("quickjs"),
            limits=Limits(timeout_ms=60_000),
            providers=[Provider.of(wait)],
            is_durable=is_durable,
        )
        self._running = asyncio.ensure_future(app.kernel.run(execution, self.handle))

    def _listen(self, event: RunEvent) -> None:
        if isinstance(event, RunSuspended):
            self.stored.set()

    async def end(self) -> Result:
        self.released.set()
        return await self._running


@pytest.fixture(scope="module")
async def app(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    app = await App.create(Settings(home=str(tmp_path_factory.mktemp("home"))))
    yield app
    await app.close()


async def test_oldest_waiting_durable_runs_are_stored_first_and_continue(app: App) -> None:
    ephemeral = WaitingRun(app, is_durable=False)
    await ephemeral.waits.wait()
    runs = []
    for _ in range(3):
        runs.append(WaitingRun(app))
        await runs[-1].waits.wait()
    assert MemoryPressure(app.kernel, free_share=lambda: 1.0).check() == []
    # With a maximum share of 0, the real memory of this process is always above the limit.
    pressure = MemoryPressure(app.kernel, max_process_share=0, free_share=lambda: 1.0, max_stored_at_once=2)
    assert pressure.check() == [runs[0].handle.id, runs[1].handle.id]
    for run in runs[:2]:
        await run.stored.wait()
        assert run.handle.session is not None
        assert run.handle.session.saved is not None
        assert run.handle.session.saved.memory == []
    assert pressure.check() == [runs[2].handle.id]
    await runs[2].stored.wait()
    assert pressure.check() == []
    for run in (*runs, ephemeral):
        assert (await run.end()).result == [100, "done"]
    assert not ephemeral.stored.is_set()


async def test_runs_are_stored_when_the_machine_has_little_memory(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < free_share_of_machine() <= 1
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory_pressure, "_MEMINFO", meminfo)
    assert free_share_of_machine() == 1
    run = WaitingRun(app)
    await run.waits.wait()
    pressure = MemoryPressure(app.kernel)
    meminfo.write_text("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  200 kB\n")
    assert pressure.check() == []
    meminfo.write_text("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  20 kB\n")
    assert pressure.check() == [run.handle.id]
    await run.stored.wait()
    assert (await run.end()).result == [100, "done"]
