"""Spares of hostile packages do nothing until they are used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.harness import SyncServer, ToolServer, server_with_registry, tool
from tests.support.processes import arguments_of, descendants, wait_until


@pytest.fixture(scope="module")
async def server(sync: SyncServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToolServer]:
    settings = {"tool_timeout_ms": 1_500, "max_spares": 1, "quickjs_warm": 0, "deno_warm": 0}
    async with server_with_registry(
        tmp_path_factory.mktemp("spares"), egress_allow=sync.address, **settings
    ) as running:
        yield running


def spares(server: ToolServer, package: str) -> list[int]:
    """Returns the ids of the processes that were started for a package."""
    found = []
    for pid in descendants(server.pid):
        with contextlib.suppress(OSError):
            if arguments_of(pid)[:1] == ["/deno"] and f'"{package}"' in Path(f"/proc/{pid}/fd/0").read_text():
                found.append(pid)
    return found


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ticks(pid: int) -> int:
    """Returns the CPU time of a process in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def is_stopped(server: ToolServer, package: str) -> bool:
    """Returns whether a package has exactly one process and this process is stopped."""
    try:
        return [*map(state, spares(server, package))] == ["T"]
    except FileNotFoundError:
        return False


BACKGROUND = {
    "a loop": "setTimeout(() => { for (;;); }, 5);",
    "timers, requests, memory and a thread": """
        setInterval(() => { for (let i = 0; i < 1e6; i++); });
        setInterval(() => fetch(process.env.SYNC + '/ready/background').catch(() => {}), 5);
        const all = [];
        setInterval(() => all.push(new Uint8Array(1e7).fill(1)), 1);
        new Worker('data:text/javascript,for(;;);', { type: 'module' });
    """,
    "exit": "setTimeout(() => Deno.kill(Deno.pid, 'SIGKILL'), 5);",
}


@pytest.mark.parametrize("background", BACKGROUND.values(), ids=BACKGROUND)
async def test_background_work_of_a_package_is_stopped_between_calls(
    server: ToolServer, sync: SyncServer, background: str
) -> None:
    package = server.publish(tool("return 1", background))
    await server.execute(package, env={"SYNC": sync.url})
    await asyncio.to_thread(wait_until, lambda: is_stopped(server, package))
    [spare] = spares(server, package)
    before, requests = ticks(spare), sync.requests
    for _ in range(20):
        assert await server.healthy()
    assert (ticks(spare), sync.requests, state(spare)) == (before, requests, "T")
    # The call resumes the spare. The call may fail because of the package's background work.
    answer = await server.execute(package, env={"SYNC": sync.url})
    assert answer["success"] or answer["error"]["code"] in ("EXECUTION_TIMEOUT", "TOOL_EXECUTION_ERROR")
    assert (await server.run(tool("return 'next'")))["output"] == "next"


async def test_package_that_exits_after_its_import_is_not_restarted_endlessly(server: ToolServer) -> None:
    package = server.publish(
        tool("return 1", "setTimeout(() => Deno[Deno.internal].core.ops.op_exit(0), 1);")
    )
    for _ in range(3):
        await server.execute(package)
    started = await server.metric("hutch_processes_started_total")
    for _ in range(40):
        assert await server.healthy()
    assert await server.metric("hutch_processes_started_total") - started <= 4
