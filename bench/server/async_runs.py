"""Measures asynchronous runs on PostgreSQL with fsync: how many are accepted a second, how long a client
waits for the acceptance, and how long an accepted run waits on an idle server.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httptools

from bench.report import Row, Scale, median, number, percentile

CONNECTIONS = 32
LATE = {"delay_ms": 3_600_000}
"""The accepted runs are not executed during the measurement, which would take the same cores."""


async def async_runs(scale: Scale) -> list[Row]:
    with _postgres() as url, tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        async with _server(home, url) as port:
            rate, waits = await _accept(port, scale.of(6_000, 1_000))
            single = await _accept_alone(port, scale.of(500, 100))
            starts = await _starts(port, scale.of(200, 40))
    return [
        Row(
            what=f"asynchronous runs accepted a second, PostgreSQL with fsync, {CONNECTIONS} connections",
            measured=f"{number(rate)}/s (p50 {number(median(waits))} ms)",
            target="≥ 1 000/s",
            met=rate >= 1_000,
            data={"rate": rate, "p50_ms": median(waits)},
        ),
        Row(
            what="accepting one asynchronous run, PostgreSQL with fsync: p50",
            measured=f"{number(median(single))} ms (p99 {number(percentile(single, 0.99))} ms)",
            target="≤ 5 ms",
            met=median(single) <= 5,
            data={"p50_ms": median(single)},
        ),
        Row(
            what="from the acceptance of a run to its start, idle server: p50",
            measured=f"{number(median(starts))} ms (p99 {number(percentile(starts, 0.99))} ms)",
            target="≤ 20 ms",
            met=median(starts) <= 20,
            data={"p50_ms": median(starts)},
        ),
    ]


class _Client:
    """HTTP client that sends prepared requests over one connection. A full HTTP client would take more time
    per request than the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.status = 0
        self.body = b""
        self._done = False

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self._done = True

    async def send(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        parser = httptools.HttpResponseParser(self)
        self.body, self._done = b"", False
        while not self._done:
            parser.feed_data(await self._reader.read(65_536))
        self.status = parser.get_status_code()
        return self.body

    def close(self) -> None:
        self._writer.close()


def _body(**options: object) -> bytes:
    import msgspec

    return msgspec.json.encode({"async": True, "kind": "code", "request": {"code": "1 + 1"}, **options})


async def _accept(port: int, count: int) -> tuple[float, list[float]]:
    body = _body(**LATE)
    waits: list[float] = []

    async def work(client: _Client, requests: int) -> None:
        for _ in range(requests):
            began = time.perf_counter()
            await client.send("POST", "/runs", body)
            waits.append((time.perf_counter() - began) * 1000)
            if client.status != 202:
                raise RuntimeError(f"status {client.status}: {client.body!r}")

    clients = [_Client(port) for _ in range(CONNECTIONS)]
    for client in clients:
        await client.open()
    await asyncio.gather(*(work(client, 5) for client in clients))
    waits.clear()
    began = time.perf_counter()
    await asyncio.gather(*(work(client, count // CONNECTIONS) for client in clients))
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    return len(waits) / seconds, waits


async def _accept_alone(port: int, count: int) -> list[float]:
    client = _Client(port)
    await client.open()
    waits = []
    for _ in range(count):
        began = time.perf_counter()
        await client.send("POST", "/runs", _body(**LATE))
        waits.append((time.perf_counter() - began) * 1000)
    client.close()
    return waits[count // 10 :]


async def _starts(port: int, count: int) -> list[float]:
    """Returns the milliseconds from the commit of a run to its start, both by the database's clock."""
    import msgspec

    client = _Client(port)
    await client.open()
    waits = []
    for _ in range(count):
        accepted = msgspec.json.decode(await client.send("POST", "/runs", _body()))
        while True:
            await asyncio.sleep(0.02)
            run = msgspec.json.decode(await client.send("GET", accepted["statusUrl"]))
            if run["status"] == "completed":
                break
        waits.append(run["queue_ms"] + _between(run["created_at"], run["started_at"], run["queue_ms"]))
    client.close()
    return waits[count // 10 :]


def _between(created: str, started: str, queue_ms: float) -> float:
    from datetime import datetime

    seconds = (datetime.fromisoformat(started) - datetime.fromisoformat(created)).total_seconds()
    return max(0.0, seconds * 1000 - queue_ms)


@asynccontextmanager
async def _server(home: str, url: str) -> AsyncIterator[int]:
    env = {**os.environ, "HUTCH_HOME": home, "HUTCH_DATABASE_URL": url, "HUTCH_LOG_LEVEL": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hutch", "serve", "--port", "0", env=env, stdout=subprocess.PIPE, cwd=home
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    try:
        yield int(line.split("http://127.0.0.1:")[1].split()[0])
    finally:
        process.terminate()
        await process.communicate()


@contextmanager
def _postgres() -> Iterator[str]:
    """Starts PostgreSQL with its default settings, so that each commit is on the disk."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = Path(tempfile.mkdtemp(prefix="hutch-bench-pg-"))
    options: dict[str, object] = {"cwd": folder}
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        initdb = [str(programs[-1] / "initdb"), "-A", "trust", "-U", "hutch", "-E", "UTF8", "--locale", "C"]
        subprocess.run([*initdb, "-D", folder / "data"], check=True, capture_output=True, **options)  # type: ignore[call-overload]
        server = subprocess.Popen(
            [
                programs[-1] / "postgres",
                "-D",
                folder / "data",
                "-c",
                "listen_addresses=",
                "-c",
                f"unix_socket_directories={folder}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **options,  # type: ignore[call-overload]
        )
        try:
            url = f"postgresql://hutch@/postgres?host={folder}"
            _wait_for(url)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
