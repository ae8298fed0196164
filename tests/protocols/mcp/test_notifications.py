"""Progress while code runs, and cancellation by the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest
from mcp import Client
from tests.protocols.mcp.harness import IMPORT, McpHarness, listening, run, run_structured
from tests.protocols.mcp.observers import WAIT, ProgressRecorder, ends_script, in_flight
from tests.support.waiting import eventually

from hutch.app.app import App
from hutch.http.auth import AccessControl
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer
from hutch.settings import Settings


@pytest.fixture
async def fast_heartbeat_server(harness: McpHarness) -> AsyncIterator[HutchMcpServer]:
    """A server with a very short heartbeat."""
    mcp_server = HutchMcpServer(harness, heartbeat_seconds=0.02)
    yield mcp_server
    mcp_server.close()


@pytest.mark.parametrize("language", ["toolscript", "javascript"])
async def test_every_tool_call_is_reported(client: Client, language: str) -> None:
    recorder = ProgressRecorder()
    code = f"{IMPORT} await tools.github.listIssues(); await tools.github.fail().catch(() => 0); return 1;"
    found = await run_structured(client, code, language, on_progress=recorder)
    await recorder.until("call 2: ")
    assert found["result"] == 1
    # Ignore other messages. On a slow machine, there are heartbeats between the messages about calls.
    first, second = [text for _, text in recorder.steps if text and text.startswith("call ")]
    assert first.startswith("call 1: list_issues of github (")
    assert second.startswith("call 2: fail of github: failed (")


async def test_waiting_client_gets_heartbeats(
    harness: McpHarness, fast_heartbeat_server: HutchMcpServer, era: str
) -> None:
    recorder = ProgressRecorder()
    async with Client(fast_heartbeat_server.server, mode=era) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_structured(client, WAIT["toolscript"], on_progress=recorder))
        await recorder.until("running for 0 s")
        harness.upstream.released.set()
        assert (await running)["result"] == 1
    steps = [progress for progress, _ in recorder.steps]
    assert steps == [*range(1, len(steps) + 1)]


async def test_waiting_for_an_approval_is_reported(app: App) -> None:
    harness = McpHarness(app, {"github": "ask"})
    recorder = ProgressRecorder()
    access = AccessControl(Settings())
    mcp_server = HutchMcpServer(harness, access=access, heartbeat_seconds=0.02)
    async with Client(mcp_server.server) as client, asyncio.TaskGroup() as tasks:
        code = f"{IMPORT}return await tools.github.listIssues();"
        running = tasks.create_task(run_structured(client, code, on_progress=recorder))
        await recorder.until("waiting for an approval")
        (asked,) = harness.gateway.approvals.pending()
        harness.gateway.approvals.decide(asked.id, ApprovalAnswer("allow"))
        assert (await running)["ok"]
    mcp_server.close()


async def test_client_without_progress_token_gets_no_progress(fast_heartbeat_server: HutchMcpServer) -> None:
    recorder: list[object] = []

    async def on_message(message: object) -> None:
        recorder.append(message)

    async with Client(fast_heartbeat_server.server, mode="legacy", message_handler=on_message) as client:
        await run_structured(client, f"{IMPORT}await tools.github.listIssues(); return 1;")
    assert recorder == []


async def test_cancelled_script_is_stopped(harness: McpHarness, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, client, WAIT["toolscript"])
        await harness.upstream.called.wait()
        with anyio.CancelScope(shield=True):
            async with ends_script(harness):
                tasks.cancel_scope.cancel()
    await eventually(harness.upstream.cancelled.is_set)
    harness.upstream.released.set()
    assert (await run_structured(client, WAIT["toolscript"]))["result"] == 1


async def test_cancelled_javascript_is_stopped(harness: McpHarness, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, client, WAIT["javascript"], "javascript")
        await harness.upstream.called.wait()
        assert in_flight(harness, "quickjs") == 1
        tasks.cancel_scope.cancel()
    await eventually(lambda: harness.upstream.cancelled.is_set() and not in_flight(harness, "quickjs"))
    harness.upstream.released.set()
    assert (await run_structured(client, WAIT["javascript"], "javascript"))["result"] == 1


async def test_cancelled_busy_loop_is_stopped(harness: McpHarness, client: Client) -> None:
    recorder = ProgressRecorder()
    code = f"{IMPORT}await tools.github.listIssues(); for (;;) {{}}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, client, code, on_progress=recorder))
        await recorder.until("list_issues")
        with anyio.CancelScope(shield=True):
            async with ends_script(harness):
                tasks.cancel_scope.cancel()


async def test_cancelled_call_over_http_stops_the_run(harness: McpHarness, era: str) -> None:
    async with listening(harness) as (url, _, _), Client(url, mode=era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, WAIT["toolscript"])
            await harness.upstream.called.wait()
            with anyio.CancelScope(shield=True):
                async with ends_script(harness):
                    tasks.cancel_scope.cancel()
        harness.upstream.released.set()
        assert (await run_structured(client, WAIT["toolscript"]))["result"] == 1


async def test_progress_over_http_arrives_during_the_run(harness: McpHarness, era: str) -> None:
    recorder = ProgressRecorder()
    code = f"{IMPORT}await tools.github.listIssues(); await tools.github.wait(); return 1;"
    async with (
        listening(harness) as (url, _, _),
        Client(url, mode=era) as client,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(run_structured(client, code, on_progress=recorder))
        await recorder.until("call 1: list_issues of github")
        assert not running.done()
        harness.upstream.released.set()
        assert (await running)["result"] == 1
