"""Kills the machines of a cluster at random under mixed load: `python -m tests.cluster.chaos --seconds 120`.

There are two servers with one PostgreSQL, three workers and one NATS server. Every few seconds, one of these
processes is killed and started again. Afterwards:

- every accepted asynchronous run has ended with the right result;
- no tool was called twice for the same key;
- no answer was wrong;
- no process is left.

With `--links`, each of them except PostgreSQL is in a network namespace of its own, and links are cut at
random too. Executions then wait for workers while servers are killed, so that an asynchronous run may also
end as a dead letter because it has lost three servers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from tests.support.databases import PostgresServer, running_postgres
from tests.support.network.clusters import SECRET, NatsServer, free_port
from tests.support.network.namespaces import Network, running_network
from tests.support.processes import HUTCH, copy_selftest, descendants

import hutch
from hutch.errors import HutchError

PR_SET_CHILD_SUBREAPER = 36
# Error codes that a caller may get when a machine was killed. Every other answer must be the right result.
ALLOWED = {"busy", "interrupted", "internal_error", "cancelled", "shutting_down", "connection_lost"}
SETTLE_SECONDS = 90.0
LOST_SERVERS = "The run has lost 3 servers"
FRONTS = ("front0", "front1")
WORKERS = ("worker0", "worker1", "worker2")
# Ports in the network namespaces.
NATS_PORT, FRONT_PORT = 4222, 4111
LIMITS = {"timeout_ms": 20_000}


class Node:
    """A process that can be killed and started again."""

    def __init__(self, kind: str, command: list[str], env: dict[str, str]) -> None:
        self.kind = kind
        self._command = command
        self._env = env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with Path(self._env["HUTCH_HOME"], "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env={**os.environ, **self._env}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self) -> None:
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)


class NatsNode:
    kind = "nats"

    def __init__(self) -> None:
        self.server = NatsServer()

    def start(self) -> None:
        self.server.start()

    def kill(self) -> None:
        self.server.stop()


class Links:
    """Network namespaces for all nodes, and ports of loopback for the fronts."""

    def __init__(self, network: Network, ports: list[int]) -> None:
        self.network = network
        self.ports = ports
        self.nats_url = f"nats://{network.address('nats')}:{NATS_PORT}"

    def nats(self, home: Path) -> Node:
        home.mkdir()
        program = str(Path(sysconfig.get_path("scripts")) / "nats-server")
        command = [program, "-a", self.network.address("nats"), "-p", str(NATS_PORT)]
        return Node("nats", [*self.network.entering("nats"), *command], {"HUTCH_HOME": str(home)})


@contextlib.contextmanager
def opened_links() -> Iterator[Links]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(running_network("nats", *FRONTS, *WORKERS))
        yield Links(network, [stack.enter_context(network.forwarded(name, FRONT_PORT)) for name in FRONTS])


class PostgresNode:
    kind = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        # On SIGQUIT, PostgreSQL ends all of its processes at once and without a checkpoint. After SIGKILL,
        # some of the processes could still exist when the server starts again.
        self._server.stop(signal.SIGQUIT)


class Chaos:
    def __init__(self, folder: Path, postgres: PostgresServer, seed: int, links: Links | None) -> None:
        self.random = random.Random(seed)
        self._links = links
        self.nats: Any = NatsNode() if links is None else links.nats(folder / "nats")
        self.postgres = PostgresNode(postgres)
        database = postgres.new_database()
        shared = {
            "HUTCH_CLUSTER_URL": self.nats.server.url if links is None else links.nats_url,
            "HUTCH_CLUSTER_SECRET": SECRET,
            "HUTCH_QUICKJS_WARM": "0",
            "HUTCH_DENO_WARM": "0",
            "HUTCH_DRAIN_SECONDS": "5",
        }
        self.ports = [free_port() for _ in FRONTS] if links is None else links.ports
        self.nodes: list[Any] = [self.nats, self.postgres]
        for name, port in zip(FRONTS, self.ports, strict=True):
            env = {
                **shared,
                "HUTCH_HOME": self._home(folder / name),
                "HUTCH_PORT": str(port if links is None else FRONT_PORT),
                "HUTCH_DATABASE_URL": database,
                "HUTCH_CLUSTER_LOCAL": "false",
                "HUTCH_ASYNC_LEASE_SECONDS": "2",
                "HUTCH_MASTER_KEY": base64.b64encode(bytes(range(32))).decode(),
                "HUTCH_CLUSTER_NODE": name,
            }
            self.nodes.append(Node("front", [*self._entering(name), *HUTCH, "serve"], env))
        for name in WORKERS:
            env = {**shared, "HUTCH_HOME": self._home(folder / name), "HUTCH_CLUSTER_NODE": name}
            self.nodes.append(Node("worker", [*self._entering(name), *HUTCH, "worker"], env))
        self.outcomes: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.cuts: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.accepted: dict[str, int] = {}
        self._numbers = iter(range(1, 10**9))

    @staticmethod
    def _home(home: Path) -> str:
        copy_selftest(home)
        return str(home)

    def _entering(self, name: str) -> list[str]:
        return [] if self._links is None else self._links.network.entering(name)

    async def run(self, seconds: float) -> None:
        for node in self.nodes:
            if node is not self.postgres:
                node.start()
        await self._ready(self.ports)
        until = time.monotonic() + seconds
        load = [
            self._repeat(until, work)
            for work in (self._code, self._code, self._deno, self._tool, self._queue)
        ]
        await asyncio.gather(self._kill(until), self._cut(until), *load)
        await self._ready(self.ports)
        await self._finish()

    async def _ready(self, ports: list[int]) -> None:
        async with httpx2.AsyncClient(timeout=5) as http:
            for port in ports:
                deadline = time.monotonic() + 60
                while True:
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await http.get(f"http://127.0.0.1:{port}/ready")).status_code == 200:
                            break
                    assert time.monotonic() < deadline, f"the server on port {port} is not ready"
                    await asyncio.sleep(0.1)

    async def _kill(self, until: float) -> None:
        """Kills and restarts nodes in random order. In each round, every kind of node is killed at least
        once.
        """
        kinds: list[str] = []
        while time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            if not kinds:
                kinds = ["nats", "postgres", "front", "front", "worker", "worker", "worker"]
                self.random.shuffle(kinds)
            kind = kinds.pop()
            node = self.random.choice([node for node in self.nodes if node.kind == kind])
            await asyncio.to_thread(node.kill)
            self.kills[kind] += 1
            await asyncio.sleep(self.random.uniform(0.1, 1.5))
            await asyncio.to_thread(node.start)

    async def _cut(self, until: float) -> None:
        """Cuts one link after another, for times that all, some or no sessions survive."""
        while self._links is not None and time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            name = self.random.choice(["nats", *FRONTS, *WORKERS])
            with self._links.network.cut_off(name):
                self.cuts[name.rstrip("012")] += 1
                await asyncio.sleep(self.random.choice([0.5, 2.0, 4.0, 7.0]))

    async def _repeat(self, until: float, work: Any) -> None:
        while time.monotonic() < until:
            try:
                await work()
            except (httpx2.HTTPError, OSError, EOFError):
                self.outcomes["front lost"] += 1
                await asyncio.sleep(0.05)
            except HutchError as error:
                self.outcomes[f"{error.code}"] += 1
                await asyncio.sleep(0.05)

    def _url(self) -> str:
        return f"http://127.0.0.1:{self.random.choice(self.ports)}"

    def _check(self, what: str, response: httpx2.Response, expected: Any) -> None:
        body = (
            response.json() if response.headers.get("content-type", "").startswith("application/json") else {}
        )
        if response.status_code == 200 and body.get("ok"):
            self._judge(what, body.get("result"), expected)
            return
        error = body.get("error") or {}
        code = error.get("code") if isinstance(error, dict) else str(error)
        self._failed(what, f"{code}".lower(), str(body))

    def _judge(self, what: str, result: Any, expected: Any) -> None:
        if result == expected:
            self.outcomes[f"{what} ok"] += 1
        else:
            self.wrong.append(f"{what}: {result!r} instead of {expected!r}")

    def _failed(self, what: str, code: str, detail: str) -> None:
        if code in ALLOWED:
            self.outcomes[f"{what} {code}"] += 1
        else:
            self.wrong.append(f"{what}: {code}: {detail[:300]}")

    async def _code(self) -> None:
        number = next(self._numbers)
        loop = "for (let i = 0; i < 20000; i++) n = (n * 31 + i) % 1000003"
        code = f"let n = {number}; {loop}; return [{number}, n]"
        expected = number
        for i in range(20000):
            expected = (expected * 31 + i) % 1000003
        async with httpx2.AsyncClient(timeout=60) as http:
            response = await http.post(f"{self._url()}/run", json={"code": code, "limits": LIMITS})
        self._check("code", response, [number, expected])

    async def _deno(self) -> None:
        number = next(self._numbers)
        async with httpx2.AsyncClient(timeout=60) as http:
            body = {"code": f"return {number} * 2", "engine": "deno", "limits": LIMITS}
            response = await http.post(f"{self._url()}/run", json=body)
        self._check("deno", response, number * 2)

    async def _tool(self) -> None:
        key = f"key{next(self._numbers)}"

        def count(key: str) -> int:
            self.calls[key] += 1
            return len(key)

        url = self._url().replace("http", "ws") + "/execbox"
        async with hutch.connect(url) as remote:
            code = f"return await tools.count({{key: '{key}'}}) + 1"
            result = await remote.run(code, tools=[count], timeout_ms=20_000)
        if result.ok:
            self._judge("tool", result.result, len(key) + 1)
        else:
            assert result.error is not None
            self._failed("tool", result.error.code, result.error.message)

    async def _queue(self) -> None:
        number = next(self._numbers)
        body = {"async": True, "kind": "code", "request": {"code": f"return {number} + 1"}}
        async with httpx2.AsyncClient(timeout=30) as http:
            response = await http.post(f"{self._url()}/runs", json=body)
        if response.status_code == 202:
            self.accepted[response.json()["runId"]] = number + 1
            self.outcomes["queue accepted"] += 1
        elif response.status_code in (502, 503):
            self.outcomes[f"queue {response.status_code}"] += 1
        else:
            self.wrong.append(f"queue: {response.status_code}: {response.text[:300]}")
        await asyncio.sleep(0.05)

    async def _finish(self) -> None:
        """Waits for all accepted runs."""
        deadline = time.monotonic() + SETTLE_SECONDS
        open_runs = dict(self.accepted)
        async with httpx2.AsyncClient(timeout=30) as http:
            while open_runs:
                for run_id, expected in [*open_runs.items()]:
                    body = (await http.get(f"{self._url()}/runs/{run_id}")).json()
                    if body.get("status") in ("queued", "running", "delayed", None):
                        continue
                    result = (await http.get(f"{self._url()}/runs/{run_id}/result")).json()
                    if result.get("ok"):
                        self._judge("queued run", result.get("result"), expected)
                    elif self._links and result["error"]["message"] == LOST_SERVERS:
                        self.outcomes["queued run lost its servers"] += 1
                    else:
                        self.wrong.append(f"queued run: {result}, {body}")
                    del open_runs[run_id]
                if time.monotonic() > deadline:
                    for run_id in open_runs:
                        body = (await http.get(f"{self._url()}/runs/{run_id}")).json()
                        self.wrong.append(f"the accepted run {run_id} has not ended: {body}")
                    return
                await asyncio.sleep(0.2)

    def stop(self) -> None:
        nodes = [node for node in self.nodes if isinstance(node, Node) and node is not self.nats]
        for node in nodes:
            node.stop()
        for node in nodes:
            node.wait()
        self.nats.kill()

    def problems(self) -> list[str]:
        twice = [f"{key} was called {count} times" for key, count in self.calls.items() if count > 1]
        return [*self.wrong, *twice]


def adopt_orphans() -> None:
    """Makes this process the parent of processes whose parent was killed. Otherwise `remaining` would not
    find them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def remaining(before: set[int], seconds: float = 15.0) -> list[str]:
    """Returns the processes that still exist after a grace period."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = [pid for pid in descendants(os.getpid()) if pid not in before]
        if not left or time.monotonic() > deadline:
            return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200] for pid in left]
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--links", action="store_true", help="cut links between network namespaces too")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory(prefix="hutch-chaos-") as folder,
        running_postgres() as postgres,
        opened_links() if options.links else contextlib.nullcontext() as links,
    ):
        before = set(descendants(os.getpid()))
        chaos = Chaos(Path(folder), postgres, seed, links)
        try:
            asyncio.run(chaos.run(options.seconds))
        finally:
            chaos.stop()
            if chaos.problems():
                for log in sorted(Path(folder).glob("*/log")):
                    print(f"--- {log.parent.name}\n{log.read_text(errors='replace')[-3000:]}")
        orphans = remaining(before)
    print(f"seed {seed}; killed {dict(chaos.kills)}; cut links of {dict(chaos.cuts)}")
    for outcome, count in sorted(chaos.outcomes.items()):
        print(f"  {count:6} {outcome}")
    problems = [*chaos.problems(), *(f"orphan: {each}" for each in orphans)]
    for problem in problems[:20]:
        print(f"PROBLEM {problem}")
    if problems:
        print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
