"""Fronts and workers in network namespaces of their own, which reach only NATS. Links are slow, or cut."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.network.linked_cluster import NATS_PORT, WORKERS, LinkedCluster, running_linked_cluster
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.waiting import eventually

import hutch
from hutch.api.remote import Remote

DELAY_SECONDS = 0.05
GAP_SECONDS = 2.0
GUEST_SECONDS = 6.0
LONG_MS = 60_000
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)"
MIB = 2**20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedCluster]:
    with running_linked_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def cluster(running: LinkedCluster) -> AsyncIterator[LinkedCluster]:
    await running.joined()
    running.forget_logs()
    yield running
    for name in WORKERS:
        running.network.restore(name)


@pytest.fixture
async def remote(cluster: LinkedCluster) -> AsyncIterator[Remote]:
    async with hutch.connect(cluster.execbox) as remote:
        yield remote


class HeldTools:
    """Tools that wait until the test lets them continue."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._answers: dict[str, asyncio.Future[Any]] = {}

    def answer(self, key: str, value: Any) -> None:
        self._answer(key).set_result(value)

    async def wait(self, key: str) -> Any:
        self.calls.append(key)
        return await self._answer(key)

    async def called(self, *keys: str) -> None:
        await eventually(lambda: {*keys} <= {*self.calls})

    def _answer(self, key: str) -> asyncio.Future[Any]:
        return self._answers.setdefault(key, asyncio.get_running_loop().create_future())


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_executions_use_all_workers(cluster: LinkedCluster, remote: Remote, engine: str) -> None:
    await use_all_workers(cluster, remote, engine)


async def use_all_workers(cluster: LinkedCluster, remote: Remote, engine: str) -> None:
    """Runs several executions at once, which call tools."""
    held = HeldTools()
    keys = [f"{n}" for n in range(4)]
    runs = [
        asyncio.ensure_future(
            remote.run(
                f"const n = await tools.wait({{key: '{key}'}}); return await tools.add({{a: n, b: {key}}})",
                tools=[held.wait, add],
                engine=engine,
                timeout_ms=LONG_MS,
            )
        )
        for key in keys
    ]
    await held.called(*keys)
    if engine == "deno":
        assert all(cluster.runners(name) for name in WORKERS)
    for key in keys:
        held.answer(key, 10)
    assert [(await run).result for run in runs] == [10, 11, 12, 13]


async def test_machines_are_connected_with_nats_only(cluster: LinkedCluster, remote: Remote) -> None:
    network = cluster.network
    nats = f"{network.address('nats')}:{NATS_PORT}"

    def can_connect(name: str, other: str, port: int) -> bool:
        command = network.command(
            name, sys.executable, "-IS", "-c", CONNECT, network.address(other), str(port)
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "Network is unreachable" in done.stderr, done.stderr
        return done.returncode == 0

    assert (await remote.run("return await tools.add({a: 1, b: 2})", tools=[add])).result == 3
    assert can_connect("front", "nats", NATS_PORT)
    assert not can_connect("front", "first", 1)
    assert not can_connect("first", "front", 1)
    for name in WORKERS:
        assert cluster.connections(name) == {nats}
    assert {peer for peer in cluster.connections("front") if not peer.startswith("127.")} == {nats}


async def test_link_with_a_delay_of_50_ms(cluster: LinkedCluster, remote: Remote) -> None:
    with cluster.network.delayed("front", DELAY_SECONDS):
        began = asyncio.get_running_loop().time()
        result = await remote.run("return await tools.add({a: 1, b: 2})", tools=[add])
        assert result.result == 3
        # The code, the call, its result and the result of the run.
        assert asyncio.get_running_loop().time() - began >= 4 * DELAY_SECONDS
        runs = [
            remote.run(
                f"console.log('{n}'); return (await tools.add({{a: {n}, b: 1}})) + 'x'.repeat({n} * 500)",
                tools=[add],
                engine="deno" if n % 8 == 0 else "quickjs",
            )
            for n in range(16)
        ]
        results = await asyncio.gather(*runs)
        assert [result.result for result in results] == [f"{n + 1}" + "x" * 500 * n for n in range(16)]
        assert [result.logs for result in results] == [[f"{n}"] for n in range(16)]
        late = await remote.run("console.log('before'); while (true) {}", timeout_ms=300)
        assert late.error is not None
        assert (late.error.code, late.logs) == ("timeout", ["before"])


async def test_sessions_survive_a_link_that_is_cut_for_a_moment(
    cluster: LinkedCluster, remote: Remote
) -> None:
    held = HeldTools()
    sizes = (1, MIB)
    code = "const text = await tools.wait({key: '%s'}); return text.length + await tools.add({a: 1, b: 2})"
    runs = [
        asyncio.ensure_future(remote.run(code % size, tools=[held.wait, add], timeout_ms=LONG_MS))
        for size in sizes
    ]
    await held.called(*map(str, sizes))
    for name in WORKERS:
        cluster.network.cut(name)
    for size in sizes:
        held.answer(str(size), "x" * size)
    noticed = (cluster.logged(name, "the connection to NATS is lost") for name in WORKERS)
    await asyncio.gather(asyncio.sleep(GAP_SECONDS), *noticed)
    for name in WORKERS:
        cluster.network.restore(name)
    assert [(await run).result for run in runs] == [4, MIB + 3]
    assert sorted(held.calls) == [*map(str, sizes)]


class TwoGuests:
    """Two executions on the same worker, of which one has called a tool. The other one waits, and returns the
    time at which it began. Both last longer than a worker waits for its front.
    """

    def __init__(self, cluster: LinkedCluster, remote: Remote) -> None:
        self._cluster = cluster
        self._remote = remote
        self._held = HeldTools()

    async def start(self) -> str:
        """Returns the name of their worker."""
        cluster = self._cluster
        await eventually(lambda: not any(map(cluster.runners, WORKERS)))
        self.calling = self._run("await tools.wait({key: 'a'}); return await tools.wait({key: 'b'})")
        self._held.answer("a", 1)
        await self._held.called("a", "b")
        [worker] = [name for name in WORKERS if cluster.runners(name)]
        known = {*cluster.runners(worker)}
        self._end = time.time() + GUEST_SECONDS
        wait = f"await new Promise((end) => setTimeout(end, {self._end * 1000} - began))"
        self.waiting = self._run(f"const began = Date.now(); {wait}; return began / 1000")
        await eventually(lambda: {*cluster.runners(worker)} - known)
        self._processes = [os.pidfd_open(pid) for pid in cluster.runners(worker)]
        self.cut_at = time.time()
        cluster.network.cut(worker)
        return worker

    async def check_results(self) -> None:
        """Checks that one began again, that the other one was interrupted, and that no process is left."""
        interrupted = await self.calling
        assert interrupted.error is not None
        assert interrupted.error.message.startswith("The run was interrupted: the worker"), interrupted.error
        assert [call.code is None for call in interrupted.calls] == [True, False]
        assert self._held.calls == ["a", "b"]
        ended = await asyncio.gather(*(asyncio.to_thread(_ended_at, fd) for fd in self._processes))
        assert max(ended) < self._end
        result = await self.waiting
        assert result.result > self.cut_at + 1

    def _run(self, code: str) -> asyncio.Future[hutch.Result]:
        run = self._remote.run(code, tools=[self._held.wait], engine="deno", timeout_ms=20_000)
        return asyncio.ensure_future(run)


def _ended_at(process: int) -> float:
    """Waits for the end of a process. Returns its time."""
    with os.fdopen(process):
        assert select.select([process], [], [], TIMEOUT_SECONDS)[0]
        return time.time()


async def test_worker_that_was_cut_off_joins_again(cluster: LinkedCluster, remote: Remote) -> None:
    guests = TwoGuests(cluster, remote)
    with cluster.network.delayed("front", DELAY_SECONDS):
        worker = await guests.start()
        [other] = {*WORKERS} - {worker}
        await cluster.logged("front", f"the worker {worker} is lost")
        await cluster.joined(1)
        cluster.network.restore(worker)
        await guests.check_results()
        assert f"the worker {other} is lost" not in cluster.log("front")
    await cluster.joined()
    await use_all_workers(cluster, remote, "deno")


async def test_front_notices_that_a_worker_has_cancelled_its_executions(
    cluster: LinkedCluster, remote: Remote
) -> None:
    """The worker gets no packet of the front until it gives up the front and cancels the executions. The
    front gets packets of the worker again before it would give up the worker.
    """
    guests = TwoGuests(cluster, remote)
    worker = await guests.start()
    await cluster.logged(worker, "the front front is lost")
    cluster.network.restore(worker)
    await guests.check_results()
    await cluster.joined()
    assert (await remote.run("1 + 1")).result == 2
