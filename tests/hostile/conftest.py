"""A server for hostile packages, and what must be as before after each."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.abilities.workshop import Workshop, workshop
from tests.contract.tpmjs.served import AT_ONCE, Executor, Meeting, made_up, meeting, runners, tool
from tests.hostile.processes import groups
from tests.processes import until

import hutch
from hutch.settings import Settings

MOST_BYTES = 400 * 2**20


@pytest.fixture(scope="session")
async def meet(anyio_backend: object) -> AsyncIterator[Meeting]:
    async with meeting() as place:
        yield place


@pytest.fixture(scope="session")
async def victim(anyio_backend: object, environment: None, meet: Meeting) -> AsyncIterator[Executor]:
    """Little time and memory for a tool, no process but those that execute one, and a log that says all."""
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="h-") as folder, tempfile.TemporaryDirectory() as home:
        settings = {"tool_timeout_ms": 1_500, "tool_memory_bytes": 128 * 2**20, "egress_allow": meet.address}
        none = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}
        log = {"log_level": "debug", "log_json": True}
        variables = {"TMPDIR": folder, "XDG_RUNTIME_DIR": folder}
        async with made_up(Path(home), variables, **settings, **none, **log) as running:
            running.folders = (Path(folder), Path(home))
            yield running


@pytest.fixture
async def tools(victim: Executor) -> AsyncIterator[Executor]:
    """The same, looked after when the test is over: it serves, and nothing is left."""
    yield victim
    assert await victim.healthy()
    answer = await victim.run(tool("return { sum: params.a + 1 }"), params={"a": 1})
    assert (answer["success"], answer.get("output")) == (True, {"sum": 2})
    await asyncio.to_thread(until, lambda: not runners(victim.pid))
    # Those of processes that were still dying are removed when the next ones are made.
    assert len(groups(victim.pid)) <= AT_ONCE
    temporary, home = victim.folders
    [sockets] = temporary.iterdir()
    assert [*sockets.iterdir()] == []
    await asyncio.to_thread(until, lambda: not [*(home / "npm" / "staging").iterdir()])
    assert [line for line in victim.server.seen if "Traceback" in line or '"level": "error"' in line] == []
    assert peak_bytes(victim.pid) < MOST_BYTES


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("there is no such line")


@pytest.fixture(scope="session")
async def den(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Workshop]:
    """Where hostile abilities are run, in processes that users share: what one leaves is next to others."""
    settings = Settings(
        home=str(tmp_path_factory.mktemp("den")), ability_timeout_ms=3_000, transform_timeout_ms=1_000
    )
    async with (
        hutch.Hutch(owners_share=True) as runners,
        workshop(runners, settings, fetch_seconds=2.0, fetch_bytes=1_000_000) as made,
    ):
        yield made


@pytest.fixture
async def shop(den: Workshop) -> AsyncIterator[Workshop]:
    """The same for a user of this test's own; when it is over, nothing is held on to."""
    den.user = await den.new_user()
    den.api.asked.clear()
    den.api.answers.clear()
    den.records.clear()
    yield den
    answer = await den.run("export async function wrapper() { return Response.json(1) }")
    assert answer.body["success"], answer.body
