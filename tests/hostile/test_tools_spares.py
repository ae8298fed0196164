"""Processes that wait with a hostile package imported: they do nothing while they wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.served import Executor, Meeting, made_up, tool
from tests.processes import arguments_of, descendants, until


@pytest.fixture(scope="module")
async def server(meet: Meeting, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Executor]:
    settings = {"tool_timeout_ms": 1_500, "max_spares": 1, "quickjs_warm": 0, "deno_warm": 0}
    async with made_up(tmp_path_factory.mktemp("spares"), egress_allow=meet.address, **settings) as running:
        yield running


def spares(server: Executor, package: str) -> list[int]:
    """The processes that were told to import a package."""
    found = []
    for pid in descendants(server.pid):
        with contextlib.suppress(OSError):
            if arguments_of(pid)[:1] == ["/deno"] and f'"{package}"' in Path(f"/proc/{pid}/fd/0").read_text():
                found.append(pid)
    return found


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ticks(pid: int) -> int:
    """Of the processor's time, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def stands_still(server: Executor, package: str) -> bool:
    """Whether there is one process with a package, and it is stopped."""
    try:
        return [*map(state, spares(server, package))] == ["T"]
    except FileNotFoundError:
        return False


BACKGROUND = {
    "a loop": "setTimeout(() => { for (;;); }, 5);",
    "timers": "setInterval(() => { for (let i = 0; i < 1e6; i++); });",
    "a thread": "new Worker('data:text/javascript,for(;;);', { type: 'module' });",
    "requests": "setInterval(() => fetch(process.env.MEET + '/said/background').catch(() => {}), 5);",
    "memory": "const all = []; setInterval(() => all.push(new Uint8Array(1e7).fill(1)), 1);",
    "its end": "setTimeout(() => Deno.kill(Deno.pid, 'SIGKILL'), 5);",
}


@pytest.mark.parametrize("background", BACKGROUND.values(), ids=BACKGROUND)
async def test_what_a_package_left_running_stands_still_while_nobody_calls_it(
    server: Executor, meet: Meeting, background: str
) -> None:
    package = server.publish(tool("return 1", background))
    await server.execute(package, env={"MEET": meet.url})
    await asyncio.to_thread(until, lambda: stands_still(server, package))
    [spare] = spares(server, package)
    before, requests = ticks(spare), meet.requests
    for _ in range(20):
        assert await server.healthy()
    assert (ticks(spare), meet.requests, state(spare)) == (before, requests, "T")
    # Whatever becomes of it then is its own.
    answer = await server.execute(package, env={"MEET": meet.url})
    assert answer["success"] or answer["error"]["code"] in ("EXECUTION_TIMEOUT", "TOOL_EXECUTION_ERROR")
    assert (await server.run(tool("return 'next'")))["output"] == "next"


async def test_package_that_dies_after_its_import_starts_no_circle(server: Executor) -> None:
    """A spare that ends while it waits must not be started again and again."""
    package = server.publish(
        tool("return 1", "setTimeout(() => Deno[Deno.internal].core.ops.op_exit(0), 1);")
    )
    for _ in range(3):
        await server.execute(package)
    started = await server.metric("hutch_processes_started_total")
    for _ in range(40):
        assert await server.healthy()
    assert await server.metric("hutch_processes_started_total") - started <= 4
