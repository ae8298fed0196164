"""Progress while code runs, and its end when the client no longer wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest
from mcp import Client
from tests.doors.mcp.houses import IMPORT, House, listening, ran, run
from tests.doors.mcp.watching import WAIT, Heard, ended, in_flight
from tests.waiting import eventually

from hutch.app import App
from hutch.doors.gate import Gate
from hutch.doors.mcp.server import Door
from hutch.doors.toolscript.approvals import Answer
from hutch.settings import Settings


@pytest.fixture
async def restless(house: House) -> AsyncIterator[Door]:
    """A door that says all the time that all is well."""
    door = Door(house, heartbeat_seconds=0.02)
    yield door
    door.close()


@pytest.mark.parametrize("language", ["toolscript", "javascript"])
async def test_every_tool_call_is_a_step(client: Client, language: str) -> None:
    heard = Heard()
    prefix = IMPORT if language == "toolscript" else "const tools = { github };"
    code = f"{prefix} await tools.github.listIssues(); await tools.github.fail().catch(() => 0); return 1;"
    found = await ran(client, code, language, hear=heard)
    assert found["result"] == 1
    assert [progress for progress, _ in heard.steps] == [1, 2]
    assert (heard.steps[0][1] or "").startswith("call 1: list_issues of github (")
    assert (heard.steps[1][1] or "").startswith("call 2: fail of github: failed (")


async def test_a_client_that_waits_hears_that_all_is_well(house: House, restless: Door, era: str) -> None:
    heard = Heard()
    async with Client(restless.server, mode=era) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(ran(client, WAIT["toolscript"], hear=heard))
        await heard.until("running for 0 s")
        house.upstream.go.set()
        assert (await running)["result"] == 1
    steps = [progress for progress, _ in heard.steps]
    assert steps == [*range(1, len(steps) + 1)]


async def test_a_client_hears_that_somebody_is_being_asked(app: App) -> None:
    house = House(app, {"github": "ask"})
    heard = Heard()
    gate = Gate(Settings())
    door = Door(house, gate=gate, heartbeat_seconds=0.02)
    async with Client(door.server) as client, asyncio.TaskGroup() as tasks:
        code = f"{IMPORT}return await tools.github.listIssues();"
        running = tasks.create_task(ran(client, code, hear=heard))
        await heard.until("waiting for an approval")
        (asked,) = house.gateway.approvals.pending()
        house.gateway.approvals.decide(asked.id, Answer("allow"))
        assert (await running)["ok"]
    door.close()


async def test_who_did_not_ask_hears_nothing(restless: Door) -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    async with Client(restless.server, mode="legacy", message_handler=hear) as client:
        await ran(client, f"{IMPORT}await tools.github.listIssues(); return 1;")
    assert heard == []


async def test_a_script_that_is_cancelled_is_stopped(house: House, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, client, WAIT["toolscript"])
        await house.upstream.called.wait()
        with anyio.CancelScope(shield=True):
            async with ended(house):
                tasks.cancel_scope.cancel()
    await eventually(house.upstream.cancelled.is_set)
    house.upstream.go.set()
    assert (await ran(client, WAIT["toolscript"]))["result"] == 1


async def test_javascript_that_is_cancelled_is_stopped(house: House, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, client, WAIT["javascript"], "javascript")
        await house.upstream.called.wait()
        assert in_flight(house, "quickjs") == 1
        tasks.cancel_scope.cancel()
    await eventually(lambda: house.upstream.cancelled.is_set() and not in_flight(house, "quickjs"))
    house.upstream.go.set()
    assert (await ran(client, WAIT["javascript"], "javascript"))["result"] == 1


async def test_a_script_that_never_yields_is_stopped_too(house: House, client: Client) -> None:
    heard = Heard()
    code = f"{IMPORT}await tools.github.listIssues(); for (;;) {{}}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, client, code, hear=heard))
        await heard.until("list_issues")
        with anyio.CancelScope(shield=True):
            async with ended(house):
                tasks.cancel_scope.cancel()


async def test_over_http_a_call_that_is_cancelled_stops_the_run(house: House, era: str) -> None:
    async with listening(house) as (url, _, _), Client(url, mode=era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, WAIT["toolscript"])
            await house.upstream.called.wait()
            with anyio.CancelScope(shield=True):
                async with ended(house):
                    tasks.cancel_scope.cancel()
        house.upstream.go.set()
        assert (await ran(client, WAIT["toolscript"]))["result"] == 1


async def test_over_http_progress_comes_while_the_run_lasts(house: House, era: str) -> None:
    heard = Heard()
    code = f"{IMPORT}await tools.github.listIssues(); await tools.github.wait(); return 1;"
    async with (
        listening(house) as (url, _, _),
        Client(url, mode=era) as client,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(ran(client, code, hear=heard))
        await heard.until("call 1: list_issues of github")
        assert not running.done()
        house.upstream.go.set()
        assert (await running)["result"] == 1
