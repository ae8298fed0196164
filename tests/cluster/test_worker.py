"""All engines on a worker: results, tools, logs, limits, cancellation, large messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.cluster.test_node import RecordingConnection
from tests.support.network.clusters import (
    FrontApp,
    NatsServer,
    WorkerProcess,
    open_front,
    running_nats,
    running_worker,
)
from tests.support.processes import descendants, is_runner
from tests.support.waiting import eventually

from hutch.cluster import messages
from hutch.cluster.encryption import NodeKey
from hutch.cluster.link import LINK_ID_BYTES, hello_packet
from hutch.cluster.messages import FrontAnnouncement, Hello
from hutch.cluster.node import Node
from hutch.cluster.worker import Worker, WorkerTraits
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import RunHandle, RunLog
from hutch.settings import Settings

MIB = 2**20


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server


@pytest.fixture(scope="module")
def worker(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with running_worker(nats.url, tmp_path_factory.mktemp("worker")) as process:
        yield process


@pytest.fixture(scope="module")
async def front(
    nats: NatsServer, worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FrontApp]:
    async with open_front(nats.url, tmp_path_factory.mktemp("front")) as front:
        yield front


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_worker_runs_code_that_calls_a_tool_of_the_front(front: FrontApp, engine: str) -> None:
    code = "console.log('adding'); return await tools.add({a: 1, b: 2})"
    result = await front.run(code, engine, [add])
    assert (result.result, result.logs) == (3, ["adding"])
    assert [call.tool for call in result.calls] == ["add"]
    assert front.app.pool.stats().processes == {}


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_error_of_a_guest_has_its_position(front: FrontApp, engine: str) -> None:
    error = (await front.run("const a = 1\nthrow new TypeError('wrong')", engine)).error
    assert error is not None
    assert (error.code, error.name, error.message, error.line) == ("runtime_error", "TypeError", "wrong", 2)


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_time_limit_ends_a_guest_on_a_worker(front: FrontApp, engine: str) -> None:
    code = "console.log('before'); while (true) {}"
    result = await front.run(code, engine, limits={"timeout_ms": 200})
    assert result.error is not None
    assert (result.error.code, result.logs) == ("timeout", ["before"])
    assert (await front.run("1 + 1", engine)).result == 2


async def test_memory_limit_applies_on_a_worker(front: FrontApp) -> None:
    code = "const a = []; while (true) a.push(new Array(1e5).fill(1.5))"
    result = await front.run(code, "deno", limits={"memory_limit_bytes": 32 * MIB})
    assert result.error is not None
    assert result.error.code == "memory_limit"


async def test_log_lines_arrive_while_the_guest_runs(front: FrontApp) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    handle = RunHandle(listeners=[lambda event: isinstance(event, RunLog) and lines.put_nowait(event.line)])

    async def wait() -> str:
        return await lines.get()

    result = await front.run("console.log('first'); return await tools.wait({})", tools=[wait], handle=handle)
    assert result.result == "first"


async def test_cancelled_run_frees_its_place(front: FrontApp) -> None:
    started = asyncio.Event()
    handle = RunHandle(on_started=started.set)
    running = asyncio.ensure_future(
        front.run("while (true) {}", handle=handle, limits={"timeout_ms": 60_000})
    )
    await started.wait()
    assert handle.stop()
    assert handle.outcome_of(await running) == "cancelled"
    assert front.app.front is not None
    assert front.app.front.placement.wanted() == {"quickjs": 0, "process": 0}


async def test_messages_above_max_payload_are_cut_into_packets(front: FrontApp) -> None:
    size = 3 * MIB

    def large(text: str) -> str:
        return text + "!"

    code = f"const text = 'x'.repeat({size}); return (await tools.large({{text}})).length"
    assert (await front.run(code, tools=[large])).result == size + 1
    result = await front.run(f"return 'é'.repeat({size})")
    assert result.result == "é" * size


async def test_many_executions_share_the_link(front: FrontApp) -> None:
    results = await asyncio.gather(
        *(
            front.run(f"return await tools.add({{a: {n}, b: 1}})", tools=[add], owner=f"o{n % 3}")
            for n in range(60)
        )
    )
    assert [result.result for result in results] == [*range(1, 61)]


async def test_run_is_suspended_and_continues_on_a_worker(front: FrontApp) -> None:
    answers: dict[str, asyncio.Future[Any]] = {}

    async def slow(key: str) -> Any:
        answers[key] = asyncio.get_running_loop().create_future()
        return await answers[key]

    code = "let n = 20; n += await tools.slow({key: 'a'}); return n + await tools.slow({key: 'b'})"
    running = asyncio.ensure_future(front.run(code, tools=[slow], checkpoint_after_ms=1, is_durable=True))
    await eventually(lambda: "a" in answers)
    await eventually(lambda: front.app.front and front.app.front.placement.wanted()["quickjs"] == 0)
    answers["a"].set_result(1)
    await eventually(lambda: "b" in answers)
    answers["b"].set_result(2)
    assert (await running).result == 23


async def test_stateful_session_keeps_its_variables(front: FrontApp) -> None:
    def turn(code: str) -> Execution:
        return Execution(code=code, profile=profile_for("quickjs"))

    sessions = front.app.sessions
    await sessions.create("s1", "default")
    assert (await sessions.run("s1", turn("let total = 40"), RunHandle())).ok
    result = await sessions.run("s1", turn("total += 2; total"), RunHandle())
    assert result.result == 42


async def test_worker_ends_the_processes_of_its_executions(front: FrontApp, worker: WorkerProcess) -> None:
    await front.run("1", "deno")
    await eventually(lambda: not any(is_runner(pid, "deno.js") for pid in descendants(worker.pid)))


async def test_unexpected_error_does_not_end_the_announcements_of_a_front(
    front: FrontApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert front.app.front is not None
    membership = front.app.front.membership
    check, count = membership.check, 0

    def fail_once() -> None:
        nonlocal count
        count += 1
        if count == 1:
            raise RuntimeError("broken")
        check()

    monkeypatch.setattr(membership, "check", fail_once)
    await eventually(lambda: count > 1)
    assert "a check of the cluster failed" in caplog.text


async def test_machines_without_the_secret_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = RecordingConnection()
    unused: Any = None
    node = Node(Settings(cluster_secret="s" * 32), connection, "1.0.0")
    worker = Worker(node, unused, unused, WorkerTraits("container", "bundle"))
    key = NodeKey()

    def send_hellos() -> int:
        for _ in range(10):
            id = os.urandom(LINK_ID_BYTES)
            stranger = key.link_keys(node.key.public, "another secret", id).to_worker
            worker._receive(hello_packet(id, key.public, stranger, b"content"))
        return caplog.text.count("without the cluster's secret")

    assert send_hellos() == 1
    monkeypatch.setattr("hutch.cluster.worker.STRANGER_SECONDS", 0.0)
    assert send_hellos() == 11
    assert worker.lease_count == 0
    assert connection.sent == []


async def test_worker_announces_lost_links_only_of_fronts_that_it_has_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hutch.cluster.worker.FRONT_LOST_SECONDS", -1.0)
    connection: Any = RecordingConnection()
    connection.publish, connection.max_payload, connection.problem = lambda *_: None, MIB, "none"
    unused: Any = None
    node = Node(Settings(cluster_secret="s" * 32), connection, "1.0.0")
    worker = Worker(node, unused, unused, WorkerTraits("container", "bundle"))
    announced = FrontAnnouncement(id="heard", node="n", version="1.0.0", number=1)
    worker._front_announced(announced)
    key = NodeKey()
    ids = {front: os.urandom(LINK_ID_BYTES) for front in ("heard", "a", "b")}
    for front, id in ids.items():
        keys = key.link_keys(node.key.public, node.secret, id)
        hello = messages.encode(Hello(front=front, node="n", version="1.0.0"))
        worker._receive(hello_packet(id, key.public, keys.to_worker, hello))
    worker._check()
    assert worker._announcement().lost_links == [ids["heard"]]
