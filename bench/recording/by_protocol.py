"""Cost of run records by protocol: alternates between a server that records at the level `errors` and a
server that records nothing.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import hutch
from bench.protocols import abilities, flows, scripts, tools
from bench.recording.server import command
from bench.recording.turns import WARM_UP_TURNS, Turn, alternate, batch, comparison
from bench.report import Row, Scale

# Number of turns, in a full and in a quick benchmark. Turns of runs that each need a new process are long.
FAST, MEDIUM, SLOW = (120, 20), (60, 10), (40, 6)
HTTP_BATCH = 25
ABILITY_BATCH = 10
CALL = "return await tools.following({ n: 1 })"
SCRIPT = 'import { tools } from "toolscript";\nreturn await tools.echo.echo({ value: 1 });\n'
ONE_STEP = flows.flow([("only", "code.run", {"code": "6 * 7"})], [])
# Time after which a process that counts as warm has imported its package, and other processes have ended.
SETTLE_SECONDS = 0.3
POLL_SECONDS = 0.02

Measure = Callable[[], Awaitable[float]]
"""Measures one batch. Returns milliseconds."""


class Subject(NamedTuple):
    """A server that is measured."""

    server: tools.Server
    key: str
    """API key of a user."""


async def following(n: int) -> int:
    """Return n + 1."""
    return n + 1


async def by_protocol(scale: Scale) -> list[Row]:
    rows = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hutch-bench-"))
        port = await stack.enter_async_context(abilities.upstream())
        config = await asyncio.to_thread(_mcp_config, folder)
        homes = {name: Path(folder, name) for name in ("errors", "none")}
        async with AsyncExitStack() as running:
            subjects = {
                name: await running.enter_async_context(_serving(home, name, port, config))
                for name, home in homes.items()
            }
            servers = [subject.server for subject in subjects.values()]
            for what, measured, counts in (
                ("Execbox over HTTP, `1+1`", _http, FAST),
                ("Execbox over the WebSocket, one tool call", _websocket, FAST),
                ("Abilities, an API that takes 5 ms", _ability, MEDIUM),
                ("TPMJS, a spare ready", partial(_tool, servers), SLOW),
                ("Toolscript, checked, one tool call, in a running server", partial(_script, servers), SLOW),
                ("REP, a flow of one `code.run`", _flow, MEDIUM),
            ):
                rows.append(comparison(what, await _compare(subjects, measured, scale.of(*counts))))
        await asyncio.to_thread(_check_records, homes)
    return rows


def _mcp_config(folder: str) -> str:
    server = Path(folder, "server.py")
    server.write_text(scripts.SERVER)
    config = Path(folder, "servers.json")
    entry = {"command": sys.executable, "args": [str(server)]}
    config.write_bytes(msgspec.json.encode({"mcpServers": {"echo": entry}}))
    return str(config)


@asynccontextmanager
async def _serving(home: Path, records: str, upstream_port: int, mcp_config: str) -> AsyncIterator[Subject]:
    keys = await abilities.prepare(str(home), upstream_port, 0)
    settings = {
        "HUTCH_RECORD": "errors",
        "HUTCH_EGRESS_ALLOW": f"127.0.0.1:{upstream_port}",
        "HUTCH_ABILITY_RATE_LIMIT": "0",
        "HUTCH_FLOW_RATE_LIMIT": "0",
        "HUTCH_MCP_CONFIG": mcp_config,
    }
    async with tools.serving(str(home), command(records), **settings) as server:
        yield Subject(server, keys[0])


async def _compare(
    subjects: dict[str, Subject],
    measured: Callable[[AsyncExitStack, Subject], Awaitable[Measure]],
    turns: int,
) -> list[Turn]:
    async with AsyncExitStack() as stack:
        recorded, bare = [await measured(stack, subject) for subject in subjects.values()]
        return await alternate(recorded, bare, turns)


async def _http(stack: AsyncExitStack, subject: Subject) -> Measure:
    client = await stack.enter_async_context(subject.server.minimal_client())
    return lambda: batch(lambda: client.post("/run", {"code": "1+1"}), HTTP_BATCH)


async def _websocket(stack: AsyncExitStack, subject: Subject) -> Measure:
    url = f"ws://127.0.0.1:{subject.server.port}/execbox"
    remote = await stack.enter_async_context(hutch.connect(url))

    async def run() -> None:
        (await remote.run(CALL, tools=[following])).raise_for_error()

    return lambda: batch(run, HTTP_BATCH)


async def _ability(stack: AsyncExitStack, subject: Subject) -> Measure:
    client = abilities.client_of(subject.server.port, subject.key)
    await client.open()
    stack.callback(client.close)
    return lambda: batch(lambda: abilities.execute(client), ABILITY_BATCH)


async def _tool(servers: list[tools.Server], stack: AsyncExitStack, subject: Subject) -> Measure:
    await subject.server.call()  # installs the package
    client = await stack.enter_async_context(subject.server.minimal_client())

    async def measure() -> float:
        await _wait_for_spares(servers, "npm")
        return await batch(lambda: client.post("/execute-tool", tools.CALL), 1)

    return measure


async def _script(servers: list[tools.Server], stack: AsyncExitStack, subject: Subject) -> Measure:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    url = f"http://127.0.0.1:{subject.server.port}/mcp"
    read, write = await stack.enter_async_context(streamable_http_client(url))
    session = await stack.enter_async_context(ClientSession(read, write))
    await session.initialize()

    async def run() -> None:
        result = await session.call_tool("run_code", {"code": SCRIPT})
        if result.is_error:
            raise RuntimeError(f"the script failed: {result.content}")

    async def measure() -> float:
        await _wait_for_spares(servers, "script")
        return await batch(run, 1)

    await run()  # starts the compiler, and the first spare
    return measure


async def _flow(stack: AsyncExitStack, subject: Subject) -> Measure:
    client = subject.server.client
    (await client.post("/flows", json=ONE_STEP)).raise_for_status()

    async def measure() -> float:
        began = time.perf_counter()
        run: dict[str, Any] = (await client.post("/flows/bench/runs", json={})).raise_for_status().json()
        path = f"/runs/{run['run_id']}"
        while run["ended_at"] is None:
            await asyncio.sleep(POLL_SECONDS)
            run = (await client.get(path)).raise_for_status().json()
        if run["outcome"] != "ok":
            raise RuntimeError(f"the flow failed: {run}")
        # Use the server's clock for the end, because the polls would round the time.
        return (time.perf_counter() - began) * 1000 - (time.time() - _seconds(run["ended_at"])) * 1000

    return measure


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


async def _wait_for_spares(servers: list[tools.Server], engine: str) -> None:
    """Waits until each server has a spare, and none starts or ends a process. Otherwise the processes that
    replace the spare of one server would slow down the other server.
    """
    warm = re.compile(rf'hutch_processes_warm{{engine="{engine}"}} [1-9]')
    for server in servers:
        while True:
            text = (await server.client.get("/metrics")).text
            if warm.search(text) and "hutch_processes_starting 0" in text:
                break
            await asyncio.sleep(POLL_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)


def _check_records(homes: dict[str, Path]) -> None:
    """Raises RuntimeError unless one server has recorded the runs of each protocol and the other has recorded
    none.
    """
    counts = {}
    for name, home in homes.items():
        database = sqlite3.connect(home / "hutch.db")
        counts[name] = dict(database.execute("SELECT protocol, COUNT(*) FROM runs GROUP BY protocol"))
        database.close()
    expected = {"execbox", "abilities", "tpmjs", "toolscript", "rep"}
    is_recorded = all(counts["errors"].get(protocol, 0) > WARM_UP_TURNS for protocol in expected)
    if counts["none"] or not is_recorded:
        raise RuntimeError(
            f"expected records of {expected} on one server and none on the other, got {counts}"
        )
