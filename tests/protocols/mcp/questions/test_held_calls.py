"""Calls that wait in memory for an approval while the client has no request in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult, InputRequiredResult
from tests.protocols.mcp.harness import IMPORT, McpHarness, text_of
from tests.support.processes import TIMEOUT_SECONDS

from hutch.app.app import App
from hutch.protocols.mcp.questions import held_calls
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer

SCRIPT = f"""{IMPORT}
    const titles = ["a", "b", "c"];
    const made = await Promise.all(titles.map((title) => tools.github.createIssue({{ title }})));
    return made.length;"""
ONE = ("github__create_issue", {"title": "x"})


async def allow(*_: object) -> ElicitResult:
    return ElicitResult(action="accept")


@pytest.fixture
def harness(app: App) -> McpHarness:
    return McpHarness(app, {"github__create_issue": "ask"})


@pytest.fixture
async def mcp_server(harness: McpHarness) -> AsyncIterator[HutchMcpServer]:
    mcp_server = HutchMcpServer(harness, pass_through=True)
    yield mcp_server
    mcp_server.close()


@pytest.fixture
async def client(mcp_server: HutchMcpServer) -> AsyncIterator[Client]:
    async with Client(mcp_server.server, elicitation_callback=allow) as client:
        yield client


async def call(client: Client, name: str, arguments: dict[str, Any], **more: Any) -> Any:
    return await client.session.call_tool(name, arguments, allow_input_required=True, **more)


def answers(asked: InputRequiredResult) -> dict[str, Any]:
    accepted = dict.fromkeys(asked.input_requests or {}, ElicitResult(action="accept"))
    return {"request_state": asked.request_state, "input_responses": accepted}


async def test_toolscript_waits_for_several_approvals(client: Client, harness: McpHarness) -> None:
    answer = await client.call_tool("run_code", {"code": SCRIPT})
    assert text_of(answer) == "3\n\n(3 tool calls)"
    assert sorted(arguments["title"] for _, _, arguments in harness.upstream.calls) == ["a", "b", "c"]


async def test_answer_counts_once(client: Client, harness: McpHarness) -> None:
    asked = await call(client, *ONE)
    assert text_of(await call(client, *ONE, **answers(asked))) == '{"number":7}'
    again = await call(client, *ONE, **answers(asked))
    assert again.is_error
    assert "its answer was used before" in text_of(again)
    assert len(harness.upstream.calls) == 1


async def test_client_gets_the_result_of_a_call_that_the_operator_has_decided(
    client: Client, harness: McpHarness
) -> None:
    asked = await call(client, *ONE)
    (approval,) = harness.gateway.approvals.pending()
    assert harness.gateway.approvals.decide(approval.id, ApprovalAnswer("deny", "no"))
    answer = await call(client, *ONE, **answers(asked))
    assert "was denied: no" in text_of(answer)
    assert harness.upstream.calls == []


async def test_owner_has_a_limited_number_of_held_calls(
    client: Client, harness: McpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_CALLS_PER_OWNER", 1)
    asked = await call(client, *ONE)
    refused = await call(client, *ONE)
    assert "this client cannot ask its user" in text_of(refused)
    assert text_of(await call(client, *ONE, **answers(asked))) == '{"number":7}'


async def test_closed_server_cancels_held_calls(harness: McpHarness) -> None:
    server = HutchMcpServer(harness, pass_through=True)
    with harness.gateway.approvals.listen() as events:
        async with Client(server.server, elicitation_callback=allow) as client:
            await call(client, *ONE)
        server.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            names = [event.name for event in (await events.get(), await events.get()) if event is not None]
    assert names == ["asked", "withdrawn"]
