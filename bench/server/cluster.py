"""Executions on the workers of a cluster, compared with the same executions in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from bench.report import Row, Scale, median, number
from hutch.api.options import providers_of
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.tools.provider import Provider
from hutch.settings import load_settings

SECRET = "the secret of the benchmark's cluster"
MAX_EXTRA_MS = 1.0
MAX_CALL_MS = 1.0
MIN_SPEED_UP = 7.0
PLACES = 8
WORKERS = 8
# All processes of this benchmark share the processors of one machine. With the longer wait, the executions
# need less CPU time, so the processors are not the limit.
WAIT_SECONDS = (0.05, 0.5)
WARM_UP_ROUNDS = 5


async def cluster(scale: Scale) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder, _nats() as url:
        with _workers(url, Path(folder), 1):
            async with _front(url, Path(folder, "front")) as front:
                extra = await _extra(front, scale.of(1_000, 100))
                call, local_call = await _calls(front, scale.of(2_000, 200))
        rates: dict[float, list[float]] = {seconds: [] for seconds in WAIT_SECONDS}
        for count in (1, WORKERS):
            with _workers(url, Path(folder), count, f"quickjs={PLACES}"):
                async with _front(url, Path(folder, "front")) as front:
                    for seconds, measured in rates.items():
                        rounds = max(2, round(scale.of(120, 24) * WAIT_SECONDS[0] / seconds))
                        measured.append(await _waiting(front, count, seconds, rounds))
    remote, local = extra
    return [
        Row(
            what="cluster: quickjs `1 + 1` through NATS on a worker: p50",
            measured=f"{number(remote)} ms",
            baseline=f"{number(local)} ms: in this process",
            target=f"≤ {number(MAX_EXTRA_MS)} ms more",
            met=remote - local <= MAX_EXTRA_MS,
            data={"remote_ms": remote, "local_ms": local},
        ),
        Row(
            what="cluster: tool call of a guest on a worker, answered by the front: p50",
            measured=f"{number(call)} ms",
            baseline=f"{number(local_call)} ms: in this process",
            target=f"≤ {number(MAX_CALL_MS)} ms",
            met=call <= MAX_CALL_MS,
            data={"call_ms": call, "local_ms": local_call},
        ),
        *(_speed_up(seconds, *measured) for seconds, measured in rates.items()),
    ]


def _speed_up(seconds: float, one: float, many: float) -> Row:
    wait = f"wait {seconds * 1000:g} ms each"
    return Row(
        what=f"cluster: executions a second that {wait}, {WORKERS} workers with {PLACES} places",
        measured=number(many),
        baseline=f"{number(one)}: 1 worker",
        ratio=many / one,
        target=f"≥ {number(MIN_SPEED_UP)} times as many",
        met=many / one >= MIN_SPEED_UP,
        data={"seconds": seconds, "rates": [one, many]},
    )


class _Front:
    def __init__(self, app: App) -> None:
        self.app = app
        self.placement = app.kernel.placement

    async def run(self, code: str, providers: list[Provider] | None = None, *, local: bool = False) -> object:
        self.app.kernel.placement = None if local else self.placement
        execution = Execution(
            code=code,
            profile=profile_for("quickjs"),
            limits=self.app.kernel.limits({"timeout_ms": 60_000}),
            providers=providers or (),
        )
        result = await self.app.kernel.run(execution)
        assert result.ok, result.error
        return result.result


async def _extra(front: _Front, count: int) -> tuple[float, float]:
    """Returns the median times of an execution on the worker and in this process. Alternates between both, so
    that changes in the machine's load affect them equally.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for local in (False, True):
        for _ in range(20):
            await front.run("1 + 1", local=local)
    for _ in range(count):
        for local, measured in times.items():
            began = time.perf_counter()
            await front.run("1 + 1", local=local)
            measured.append((time.perf_counter() - began) * 1000)
    return median(times[False]), median(times[True])


async def _calls(front: _Front, count: int) -> tuple[float, float]:
    """Returns the median time between two consecutive tool calls of one execution, on the worker and in this
    process.
    """
    times: list[float] = []

    async def nothing() -> None:
        times.append(time.perf_counter())

    providers = providers_of([nothing])
    code = f"for (let i = 0; i < {count}; i++) await tools.nothing({{}})"
    measured = []
    for local in (False, True):
        await front.run("await tools.nothing({})", providers, local=local)
        times.clear()
        await front.run(code, providers, local=local)
        measured.append(median(later - earlier for earlier, later in pairwise(times)) * 1000)
    return measured[0], measured[1]


async def _waiting(front: _Front, workers: int, seconds: float, rounds: int) -> float:
    """Returns the executions per second, when all places of the workers are in use."""

    async def wait() -> None:
        await asyncio.sleep(seconds)

    providers = providers_of([wait])
    places = workers * PLACES

    async def repeat(times: int) -> None:
        for _ in range(times):
            await front.run("await tools.wait({})", providers)

    # V8 optimises the code of each new runner during its first executions.
    await asyncio.gather(*(repeat(WARM_UP_ROUNDS) for _ in range(places)))
    began = time.perf_counter()
    await asyncio.gather(*(repeat(rounds) for _ in range(places)))
    return places * rounds / (time.perf_counter() - began)


@contextlib.contextmanager
def _nats() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = Path(sysconfig.get_path("scripts"), "nats-server")
    command = [str(program), "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_until(lambda: _listens(port))
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _workers(url: str, folder: Path, count: int, places: str = "quickjs=64") -> Iterator[None]:
    hutch = str(Path(sysconfig.get_path("scripts"), "hutch"))
    processes = []
    try:
        for number_ in range(count):
            env = {
                **os.environ,
                "HUTCH_CLUSTER_SECRET": SECRET,
                "HUTCH_HOME": str(folder / f"worker{number_}"),
                "HUTCH_DENO_WARM": "0",
                "HUTCH_QUICKJS_PROCESSES": "1",
            }
            command = [hutch, "worker", "--cluster", url, "--places", places, "--name", f"w{number_}"]
            processes.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"Hutch worker")
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


@asynccontextmanager
async def _front(url: str, home: Path) -> AsyncIterator[_Front]:
    settings = {"cluster_url": url, "cluster_secret": SECRET, "home": str(home), "cluster_local": False}
    app = await App.create(load_settings(settings))
    try:
        await app.join_cluster()
        await asyncio.sleep(1.5)
        yield _Front(app)
    finally:
        await app.close()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
