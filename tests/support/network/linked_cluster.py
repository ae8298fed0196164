"""A cluster of processes, each in a network namespace of its own that reaches only NATS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx2
from tests.support.network.clusters import SECRET
from tests.support.network.namespaces import Network, running_network
from tests.support.processes import (
    HUTCH,
    NO_WARM_RUNNERS,
    TIMEOUT_SECONDS,
    copy_selftest,
    descendants,
    is_runner,
    stop_process,
)
from tests.support.waiting import eventually

WORKERS = ("first", "second")
MACHINES = ("nats", "front", *WORKERS)
NATS_PORT = 4222
FRONT_PORT = 4111
# State of a connection in /proc/net/tcp.
ESTABLISHED = "01"


class LinkedCluster:
    """NATS, a front without guests, and two workers."""

    def __init__(self, network: Network, home: Path, pids: dict[str, int], port: int) -> None:
        self.network = network
        self._pids = pids
        self._home = home
        self._log_starts: dict[str, int] = {}
        """Lengths of the logs at the last call of `forget_logs`."""
        self.url = f"http://127.0.0.1:{port}"
        """Address of the front, from outside of its namespace."""
        self.execbox = f"ws://127.0.0.1:{port}/execbox"

    async def joined(self, count: int = len(WORKERS)) -> None:
        """Waits until the front has this number of workers."""
        async with httpx2.AsyncClient(base_url=self.url) as client, asyncio.timeout(TIMEOUT_SECONDS):
            while f"hutch_workers {count}.0\n" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def runners(self, worker: str) -> list[int]:
        """Returns the processes of the engine `deno` on a worker."""
        return [pid for pid in descendants(self._pids[worker]) if is_runner(pid, "deno.js")]

    def connections(self, name: str) -> set[str]:
        """Returns the addresses to which a machine has TCP connections."""
        rows = [
            line.split() for line in Path(f"/proc/{self._pids[name]}/net/tcp").read_text().splitlines()[1:]
        ]
        return {_address(row[2]) for row in rows if row[3] == ESTABLISHED}

    def forget_logs(self) -> None:
        self._log_starts = {name: len(self._full_log(name)) for name in MACHINES}

    def log(self, name: str) -> str:
        """Returns what a machine has logged since `forget_logs`."""
        return self._full_log(name)[self._log_starts.get(name, 0) :]

    async def logged(self, name: str, text: str) -> None:
        await eventually(lambda: text in self.log(name))

    def _full_log(self, name: str) -> str:
        return (self._home / f"{name}.log").read_text()


def _address(shown: str) -> str:
    """Converts an address from /proc/net/tcp."""
    host, port = shown.split(":")
    return f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}"


@contextlib.contextmanager
def running_linked_cluster(home: Path) -> Iterator[LinkedCluster]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(running_network(*MACHINES))
        url = f"nats://{network.address('nats')}:{NATS_PORT}"

        def start(name: str, *command: str) -> subprocess.Popen[str]:
            copy_selftest(home / name)
            env = {
                **os.environ,
                **NO_WARM_RUNNERS,
                "HUTCH_HOME": str(home / name),
                "HUTCH_CLUSTER_URL": url,
                "HUTCH_CLUSTER_SECRET": SECRET,
                "HUTCH_CLUSTER_NODE": name,
                "HUTCH_CLUSTER_LOCAL": "false",
            }
            with (home / f"{name}.log").open("w") as log:
                process = stack.enter_context(
                    subprocess.Popen(
                        network.command(name, *command),
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                )
            stack.callback(stop_process, process)
            return process

        nats = str(Path(sysconfig.get_path("scripts"), "nats-server"))
        start("nats", nats, "-a", network.address("nats"), "-p", str(NATS_PORT))
        processes = {"front": start("front", *HUTCH, "serve", "--port", str(FRONT_PORT))}
        processes |= {name: start(name, *HUTCH, "worker") for name in WORKERS}
        port = stack.enter_context(network.forwarded("front", FRONT_PORT))
        for name, process in processes.items():
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Hutch "), (home / f"{name}.log").read_text()
        yield LinkedCluster(network, home, {name: process.pid for name, process in processes.items()}, port)
