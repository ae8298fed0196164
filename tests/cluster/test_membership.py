"""What happens when a worker, a front or NATS is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.network.clusters import (
    SECRET,
    FrontApp,
    NatsServer,
    WorkerProcess,
    open_front,
    running_nats,
    running_worker,
)
from tests.support.processes import Traces, descendants, is_runner
from tests.support.waiting import eventually

from hutch.app.app import App
from hutch.app.cluster import open_worker
from hutch.errors import Busy, HutchError
from hutch.session.run import RunHandle
from hutch.settings import load_settings

LONG = {"timeout_ms": 60_000}
GAP_SECONDS = 2.0
SKEWED = """
import time
real = time.time
time.time = lambda: real() - 600
"""


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server


@pytest.fixture
async def front(nats: NatsServer, tmp_path: Path) -> AsyncIterator[FrontApp]:
    async with open_front(nats.url, tmp_path / "front") as front:
        yield front


@pytest.fixture
def first(nats: NatsServer, tmp_path: Path) -> Iterator[WorkerProcess]:
    with running_worker(nats.url, tmp_path / "first", name="first") as worker:
        yield worker


class HeldTool:
    """A tool that waits until the test lets it continue."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._open: dict[str, asyncio.Future[Any]] = {}

    async def wait(self, key: str) -> Any:
        self.calls.append(key)
        self._open[key] = asyncio.get_running_loop().create_future()
        return await self._open[key]

    async def called(self, key: str) -> None:
        await eventually(lambda: key in self.calls)

    def answer(self, key: str, value: Any) -> None:
        self._open[key].set_result(value)


async def started(front: FrontApp, code: str, engine: str = "quickjs", **fields: Any) -> asyncio.Task[Any]:
    """Starts a run and waits until its guest runs."""
    event = asyncio.Event()
    handle = RunHandle(on_started=event.set)
    task = asyncio.ensure_future(front.run(code, engine, handle=handle, limits=LONG, **fields))
    await asyncio.wait_for(event.wait(), 30)
    return task


async def known(front: FrontApp, *names: str) -> None:
    await eventually(lambda: front.workers == sorted(names))


async def test_executions_of_a_killed_worker(nats: NatsServer, tmp_path: Path, first: WorkerProcess) -> None:
    """Executions that have not called a tool begin again on another worker. Executions that have called a
    tool end as interrupted, and their results list the calls.
    """
    held = HeldTool()
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(open_front(nats.url, tmp_path / "front"))
        await known(front, "first")
        spin = "const end = Date.now() + 1500; while (Date.now() < end) {} return 'done'"
        computing = [await started(front, spin, engine) for engine in ("quickjs", "deno")]
        calling = asyncio.ensure_future(
            front.run(
                "await tools.wait({key: 'a'}); return await tools.wait({key: 'b'})",
                tools=[held.wait],
                limits=LONG,
            )
        )
        await held.called("a")
        held.answer("a", 1)
        await held.called("b")
        with Traces(first.pid) as traces:
            os.kill(first.pid, signal.SIGKILL)
            stack.enter_context(running_worker(nats.url, tmp_path / "second", name="second"))
            result = await calling
            assert result.error is not None
            assert result.error.code == "interrupted"
            assert [(call.tool, call.code) for call in result.calls] == [
                ("wait", None),
                ("wait", "interrupted"),
            ]
            assert [(await task).result for task in computing] == ["done", "done"]
            assert traces.remaining() == []
        assert held.calls == ["a", "b"]


async def test_run_with_a_checkpoint_continues_on_another_worker(
    nats: NatsServer, tmp_path: Path, first: WorkerProcess
) -> None:
    held = HeldTool()
    spin = "const end = Date.now() + 1000; while (Date.now() < end) {}"
    code = f"let n = await tools.wait({{key: 'a'}}); {spin} return n + 1"
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(open_front(nats.url, tmp_path / "front"))
        running = asyncio.ensure_future(
            front.run(code, tools=[held.wait], limits=LONG, checkpoint_after_ms=1, is_durable=True)
        )
        await held.called("a")
        assert front.app.front is not None
        placement = front.app.front.placement
        await eventually(lambda: placement.wanted()["quickjs"] == 0)
        held.answer("a", 41)
        await eventually(lambda: placement.wanted()["quickjs"] == 1)
        os.kill(first.pid, signal.SIGKILL)
        stack.enter_context(running_worker(nats.url, tmp_path / "second", name="second"))
        assert (await running).result == 42
        assert held.calls == ["a"]


async def test_executions_of_a_lost_front_are_cancelled(
    nats: NatsServer, tmp_path: Path, first: WorkerProcess
) -> None:
    async with open_front(nats.url, tmp_path / "front") as front:
        await known(front, "first")
        tasks = [await started(front, "while (true) {}", engine) for engine in ("quickjs", "deno")]
        assert front.app.front is not None
        # Simulate a killed front, which stops announcing itself.
        front.app.front.node.announce = lambda *_: None  # type: ignore[method-assign]

        def runs() -> bool:
            return any(is_runner(pid, "deno.js") for pid in descendants(first.pid))

        assert runs()
        began = asyncio.get_running_loop().time()
        await eventually(lambda: not runs())
        assert asyncio.get_running_loop().time() - began < 10
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_session_survives_a_restart_of_nats(tmp_path: Path) -> None:
    held = HeldTool()
    with running_nats() as nats, running_worker(nats.url, tmp_path / "worker"):
        async with open_front(nats.url, tmp_path / "front") as front:
            code = (
                "const text = await tools.wait({key: 'a'}); return text.length + await tools.wait({key: 'b'})"
            )
            running = asyncio.ensure_future(front.run(code, tools=[held.wait], limits=LONG))
            await held.called("a")
            nats.stop()
            assert front.app.front is not None
            await eventually(lambda: front.app.front and front.app.front.problem)
            assert "cluster" in await front.app.problems()
            held.answer("a", "x" * 1_000_000)
            nats.start()
            await held.called("b")
            held.answer("b", 1)
            assert (await running).result == 1_000_001
            assert (await front.run("1 + 1")).result == 2
            assert held.calls == ["a", "b"]
            # Stop the NATS server for two seconds, as if the network had failed.
            waiting = asyncio.ensure_future(
                front.run("return await tools.wait({key: 'c'})", tools=[held.wait])
            )
            await held.called("c")
            os.kill(nats.pid, signal.SIGSTOP)
            held.answer("c", 3)
            await asyncio.sleep(GAP_SECONDS)
            os.kill(nats.pid, signal.SIGCONT)
            assert (await waiting).result == 3


async def test_draining_worker_hands_over_what_waits_and_finishes_the_rest(
    nats: NatsServer, tmp_path: Path, first: WorkerProcess
) -> None:
    held = HeldTool()
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(open_front(nats.url, tmp_path / "front"))
        await known(front, "first")
        waiting = asyncio.ensure_future(
            front.run("const n = 1; return n + await tools.wait({key: 'a'})", tools=[held.wait], limits=LONG)
        )
        await held.called("a")
        computing = await started(
            front, "const end = Date.now() + 1500; while (Date.now() < end) {} return 5"
        )
        stack.enter_context(running_worker(nats.url, tmp_path / "second", name="second"))
        await known(front, "first", "second")
        first.process.terminate()
        await eventually(lambda: first.process.poll() is not None)
        assert first.process.returncode == 0
        assert (await computing).result == 5
        held.answer("a", 2)
        assert (await waiting).result == 3
        assert held.calls == ["a"]


async def test_stopped_worker_cannot_interfere_when_it_continues(
    nats: NatsServer, tmp_path: Path, first: WorkerProcess
) -> None:
    """The worker's execution has begun again on another worker. Afterwards, the front drops all messages that
    the stopped worker sends for this execution.
    """
    calls: list[str] = []

    def mark(key: str) -> None:
        calls.append(key)

    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(open_front(nats.url, tmp_path / "front"))
        await known(front, "first")
        spin = "const end = Date.now() + 1000; while (Date.now() < end) {}"
        code = f"{spin} await tools.mark({{key: 'x'}}); return 'done'"
        running = await started(front, code, tools=[mark])
        os.kill(first.pid, signal.SIGSTOP)
        stack.enter_context(running_worker(nats.url, tmp_path / "second", name="second"))
        assert (await running).result == "done"
        os.kill(first.pid, signal.SIGCONT)
        await known(front, "first", "second")
        assert (await front.run("1 + 1", owner="another")).result == 2
        assert calls == ["x"]


async def test_clocks_of_machines_may_differ(nats: NatsServer, tmp_path: Path) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text(SKEWED)
    with running_worker(nats.url, tmp_path / "worker", PYTHONPATH=str(tmp_path)):
        async with open_front(nats.url, tmp_path / "front") as front:
            result = await front.run("setTimeout(() => {}, 1); return 1 + 1", limits={"timeout_ms": 2_000})
            assert result.result == 2


async def test_worker_of_another_version_is_refused_with_a_message(
    nats: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "cluster_url": nats.url,
        "cluster_secret": SECRET,
        "home": str(tmp_path),
        "cluster_node": "old",
    }
    app = await App.create(load_settings(settings))
    worker, connection = await open_worker(app, version="9.0.0")
    try:
        async with open_front(nats.url, tmp_path / "front", queue_seconds=0.1) as front:
            await known(front, "old")
            with pytest.raises(Busy, match="No worker is connected"):
                await front.run("1 + 1")
            assert "the worker old gets no work: it has version 9.0.0" in caplog.text
            # The worker refuses a front of another version, too.
            assert front.app.front is not None
            for known_worker in front.app.front.membership.workers.values():
                known_worker.problem = None
            with pytest.raises(HutchError, match=r"has version 9.0.0, the front"):
                await front.run("1", "deno")
    finally:
        await worker.close()
        await connection.close()
        await app.close()
