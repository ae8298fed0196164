"""Servers for hostile packages and abilities, with checks after each test."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.abilities.harness import AbilityHarness, ability_harness
from tests.contract.tpmjs.harness import (
    MAX_CONCURRENCY,
    SyncServer,
    ToolServer,
    runners,
    server_with_registry,
    sync_server,
    tool,
)
from tests.hostile.processes import groups
from tests.hostile.scripted_runner import WithRunner, scripted_runner
from tests.support.processes import wait_until

import hutch
from hutch.settings import Settings

MAX_BYTES = 400 * 2**20
HONEST_ATTEMPTS = 5


@pytest.fixture(scope="session")
async def sync(anyio_backend: object) -> AsyncIterator[SyncServer]:
    async with sync_server() as server:
        yield server


@pytest.fixture(scope="session")
async def victim(anyio_backend: object, environment: None, sync: SyncServer) -> AsyncIterator[ToolServer]:
    """A server that gives tools little time and memory, keeps no spares, and logs at debug level."""
    # A short prefix, because the folder contains sockets and the paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="h-") as folder, tempfile.TemporaryDirectory() as home:
        settings = {"tool_timeout_ms": 3_000, "tool_memory_bytes": 128 * 2**20, "egress_allow": sync.address}
        no_spares = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}
        log = {"log_level": "debug", "log_json": True}
        variables = {"TMPDIR": folder, "XDG_RUNTIME_DIR": folder}
        async with server_with_registry(Path(home), variables, **settings, **no_spares, **log) as running:
            running.folders = (Path(folder), Path(home))
            yield running


@pytest.fixture
async def tools(victim: ToolServer) -> AsyncIterator[ToolServer]:
    """The server. After each test, checks that the server works and that no processes, files or error
    messages are left.
    """
    yield victim
    assert await victim.healthy()
    answer = await _run_honest_tool(victim)
    assert (answer["success"], answer.get("output")) == (True, {"sum": 2})
    await asyncio.to_thread(wait_until, lambda: not runners(victim.pid))
    # A few control groups may be left. The group of a process that is still ending is removed when the next
    # group is created.
    assert len(groups(victim.pid)) <= MAX_CONCURRENCY
    temporary, home = victim.folders
    [sockets] = temporary.iterdir()
    assert [*sockets.iterdir()] == []
    await asyncio.to_thread(wait_until, lambda: not [*(home / "npm" / "staging").iterdir()])
    assert [line for line in victim.server.seen if "Traceback" in line or '"level": "error"' in line] == []
    assert peak_bytes(victim.pid) < MAX_BYTES


async def _run_honest_tool(victim: ToolServer) -> dict[str, Any]:
    """Runs a tool that returns immediately. Tries again if the tool times out, because on a busy machine its
    process may start too slowly for this server's time limit.
    """
    for _ in range(HONEST_ATTEMPTS - 1):
        answer = await victim.run(tool("return { sum: params.a + 1 }"), params={"a": 1})
        if answer["success"] or "TIMEOUT" not in str(answer["error"]):
            return answer
    return await victim.run(tool("return { sum: params.a + 1 }"), params={"a": 1})


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("VmHWM is missing")


@pytest.fixture(scope="session")
async def shared_abilities(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityHarness]:
    """A harness that runs hostile abilities in processes that all users share."""
    settings = Settings(
        home=str(tmp_path_factory.mktemp("abilities")), ability_timeout_ms=5_000, transform_timeout_ms=1_000
    )
    async with (
        hutch.Hutch(owners_share=True) as runners,
        ability_harness(runners, settings, fetch_seconds=4.0, max_fetch_bytes=1_000_000) as made,
    ):
        yield made


@pytest.fixture
async def abilities(shared_abilities: AbilityHarness) -> AsyncIterator[AbilityHarness]:
    """The shared harness with a new user for each test. After each test, checks that abilities still work."""
    shared_abilities.user = await shared_abilities.new_user()
    shared_abilities.api.requests.clear()
    shared_abilities.api.responses.clear()
    shared_abilities.records.clear()
    yield shared_abilities
    answer = await shared_abilities.run("export async function wrapper() { return Response.json(1) }")
    assert answer.body["success"], answer.body


@pytest.fixture
async def with_runner(tmp_path: Path) -> AsyncIterator[WithRunner]:
    """Returns a function that makes sandboxes with scripted runners. The sandboxes are closed after the
    test.
    """
    sandboxes: list[hutch.Hutch] = []

    def make(behaviour: str, **settings: Any) -> hutch.Hutch:
        sandboxes.append(scripted_runner(tmp_path / f"runner{len(sandboxes)}.py", behaviour, **settings))
        return sandboxes[-1]

    yield make
    for sandbox in sandboxes:
        await sandbox.close()
