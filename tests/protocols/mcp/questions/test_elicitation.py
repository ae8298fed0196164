"""Approvals by the client's user or by the operator. If neither can be asked, the call is denied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult
from tests.mcp_client.conftest import config, stdio_server
from tests.protocols.mcp.harness import IMPORT, McpHarness, listening, run_structured, text_of
from tests.support.processes import TIMEOUT_SECONDS

from hutch.app.app import App
from hutch.mcp_client.servers import McpServers
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer

CODE = {
    "toolscript": f"{IMPORT}return await tools.github.createIssue({{ title: 'x' }});",
    "javascript": "return await tools.github.createIssue({ title: 'x' })",
}


@pytest.fixture
def harness(app: App) -> McpHarness:
    return McpHarness(app, {"github__create_issue": "ask"})


def user(action: str, **content: Any) -> Any:
    asked: list[Any] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content=content or None)

    answer.asked = asked  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("language", [*CODE])
async def test_clients_user_can_allow_a_call(mcp_server: HutchMcpServer, language: str, era: str) -> None:
    person = user("accept")
    async with Client(mcp_server.server, mode=era, elicitation_callback=person) as client:
        assert (await run_structured(client, CODE[language], language))["result"] == {"number": 7}
    assert person.asked == ['May create_issue of github be called?\n{"title":"x"}']


async def test_clients_user_can_deny_a_call(
    harness: McpHarness, mcp_server: HutchMcpServer, era: str
) -> None:
    async with Client(mcp_server.server, mode=era, elicitation_callback=user("decline")) as client:
        found = await run_structured(client, CODE["toolscript"])
    assert "was denied: the user declined" in found["error"]["message"]
    assert harness.upstream.calls == []


async def test_user_can_allow_a_tool_for_the_whole_run(mcp_server: HutchMcpServer, era: str) -> None:
    person = user("accept", remember=True)
    call = "await tools.github.createIssue({ title: 'x' });"
    twice = f"{call} return {call}"
    async with Client(mcp_server.server, mode=era, elicitation_callback=person) as client:
        assert (await run_structured(client, twice, "javascript"))["result"] == {"number": 7}
        assert len(person.asked) == 1
        await run_structured(client, CODE["javascript"], "javascript")
        assert len(person.asked) == 2


async def test_user_is_asked_for_passed_through_tools(harness: McpHarness, era: str) -> None:
    mcp_server = HutchMcpServer(harness, pass_through=True)
    person = user("accept")
    async with Client(mcp_server.server, mode=era, elicitation_callback=person) as client:
        answer = await client.call_tool("github__create_issue", {"title": "x"})
    mcp_server.close()
    assert text_of(answer) == '{"number":7}'
    assert len(person.asked) == 1


async def test_call_is_denied_at_once_if_the_client_cannot_ask(client: Client) -> None:
    found = await run_structured(client, CODE["toolscript"])
    assert "this client cannot ask its user" in found["error"]["message"]
    assert "hutch.toml" in found["error"]["message"]


async def test_operator_can_decide_on_a_server(harness: McpHarness) -> None:
    async with listening(harness) as (url, _, _), Client(url) as client:
        with harness.gateway.approvals.listen() as events:
            running = asyncio.create_task(run_structured(client, CODE["toolscript"]))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                event = await events.get()
            assert event is not None
            assert harness.gateway.approvals.decide(event.approval.id, ApprovalAnswer("allow"))
        assert (await running)["result"] == {"number": 7}


async def test_clients_user_is_asked_over_http(harness: McpHarness) -> None:
    person = user("accept")
    async with (
        listening(harness) as (url, _, _),
        Client(url, mode="legacy", elicitation_callback=person) as client,
    ):
        assert (await run_structured(client, CODE["javascript"], "javascript"))["result"] == {"number": 7}
    assert len(person.asked) == 1


@pytest.fixture
async def asking(app: App) -> AsyncIterator[McpHarness]:
    """A harness with a real MCP server whose tool elicits information from the user."""
    harness = McpHarness(app)
    servers = McpServers(config(stdio_server("Asking")), app.settings)
    harness.use_servers(servers)
    yield harness
    await servers.close()


CALLS = {
    "passed through": ("Asking__act", {}),
    "toolscript": ("run_code", {"code": "return await tools.asking.act({});"}),
    "javascript": ("run_code", {"code": "return await tools.asking.act({})", "language": "javascript"}),
}


async def test_question_of_a_tool_is_passed_on(asking: McpHarness, era: str) -> None:
    mcp_server = HutchMcpServer(asking, pass_through=True)
    for name, arguments in CALLS.values():
        answers = iter([{"name": ""}, {"name": "Ada"}])
        asked = []

        async def answer(_: Any, params: Any, asked: Any = asked, answers: Any = answers) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult(action="accept", content=next(answers))

        async with Client(mcp_server.server, mode=era, elicitation_callback=answer) as client:
            result = await client.call_tool(name, arguments)
        assert "hello Ada after 2" in text_of(result)
        assert asked == ["act of Asking asks:\nWho are you?"] * 2
    mcp_server.close()


async def test_tool_that_asks_fails_if_the_client_cannot_ask(asking: McpHarness, era: str) -> None:
    mcp_server = HutchMcpServer(asking, pass_through=True)
    async with Client(mcp_server.server, mode=era) as client:
        result = await client.call_tool(*CALLS["passed through"])
    mcp_server.close()
    assert result.is_error
    assert "asks the user for input that the client of this call cannot provide" in text_of(result)
