"""Real NATS servers and workers for tests of clusters."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import (
    NO_WARM_RUNNERS,
    TIMEOUT_SECONDS,
    copy_selftest,
    start_hutch,
    stop_process,
    wait_until,
)

from hutch.api.options import providers_of
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle
from hutch.settings import load_settings

SECRET = "the secret of the tests' clusters"


def free_port() -> int:
    """Returns a port for a server that a test starts later, or stops and starts again.

    The port is below those that the kernel gives to outgoing connections and to listeners without a fixed
    port. Otherwise another test could get it meanwhile.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class NatsServer:
    """A nats-server on loopback, which can be stopped and started again on the same port."""

    def __init__(self, *arguments: str, scheme: str = "nats") -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        command = [str(program), "-a", "127.0.0.1", "-p", str(self.port), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "nats-server ended"
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_SECONDS)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextlib.contextmanager
def running_nats(*arguments: str, scheme: str = "nats") -> Iterator[NatsServer]:
    server = NatsServer(*arguments, scheme=scheme)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class WorkerProcess:
    """A running `hutch worker`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.announced = process.stdout.readline()
        assert self.announced.startswith("Hutch worker"), process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def running_worker(
    url: str, home: Path, *arguments: str, name: str = "w1", **env: str
) -> Iterator[WorkerProcess]:
    """Starts a worker without warm processes. At the end, stops the worker if the test has not stopped it."""
    copy_selftest(home)
    env = {**NO_WARM_RUNNERS, "HUTCH_CLUSTER_SECRET": SECRET, "HUTCH_HOME": str(home), **env}
    command = ["worker", "--cluster", url, "--name", name, *arguments]
    with start_hutch(command, env=env, text=True, stderr=None) as process:
        try:
            yield WorkerProcess(process)
        finally:
            stop_process(process)


class FrontApp:
    """An `App` in this process that is a front of a cluster. Only workers run guests."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def run(
        self,
        code: str,
        engine: str = "quickjs",
        tools: Sequence[Any] = (),
        *,
        handle: RunHandle | None = None,
        limits: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Result:
        execution = Execution(
            code=code,
            profile=profile_for(engine),
            limits=self.app.kernel.limits(limits or {}),
            providers=providers_of(tools) if tools else (),
            **fields,
        )
        return await self.app.kernel.run(execution, handle)

    @property
    def workers(self) -> list[str]:
        """Names of the workers that this front knows."""
        assert self.app.front is not None
        return sorted(worker.name for worker in self.app.front.membership.workers.values())


@asynccontextmanager
async def open_front(url: str, home: Path, **settings: Any) -> AsyncIterator[FrontApp]:
    copy_selftest(home)
    given = {
        "home": str(home),
        "cluster_url": url,
        "cluster_secret": SECRET,
        "cluster_local": False,
        "quickjs_warm": 0,
        "deno_warm": 0,
        **settings,
    }
    app = await App.create(load_settings(given))
    try:
        await app.join_cluster()
        yield FrontApp(app)
    finally:
        await app.close()


def wait_for_port(port: int) -> None:
    def is_open() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    wait_until(is_open)
