"""Pass-through of upstream tools: names, results, errors, progress and changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import ToolListChangedNotification
from tests.mcp_client.conftest import config
from tests.protocols.mcp.harness import ERAS, RESOURCE_READER, TOOLS, McpHarness, listening, text_of
from tests.protocols.toolscript.fakes import FakeTool, failing, returning, whole_result
from tests.support.forked import forked_script
from tests.support.mcp_servers import trace_echo
from tests.support.processes import TIMEOUT_SECONDS

from hutch.app.app import App
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.servers import McpServers
from hutch.mcp_client.tools import McpToolResult
from hutch.protocols.mcp.passthrough import MAX_TOOL_NAME
from hutch.protocols.mcp.results import MAX_CHARS
from hutch.protocols.mcp.server import HutchMcpServer

PIXEL = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
LONG = "a_name_that_" + "goes_on_" * 20
ODD = (
    *TOOLS,
    FakeTool("odd", "a b.c/d", "Odd.", {"type": "string"}, {"type": "array"}),
    FakeTool("odd", "日本語", "\ud800", {"type": "object", "properties": []}),
    FakeTool("odd", "中文", None, {"type": "object", "properties": {"x": True}, "required": "x"}),
    FakeTool("odd", LONG),
    FakeTool("odd", LONG + "2"),
)


@pytest.fixture
async def passing(app: App) -> AsyncIterator[tuple[McpHarness, HutchMcpServer]]:
    harness = McpHarness(app, tools=ODD)
    mcp_server = HutchMcpServer(harness, pass_through=True)
    yield harness, mcp_server
    mcp_server.close()


async def test_tools_are_not_passed_through_by_default(client: Client) -> None:
    with pytest.raises(MCPError, match="There is no tool 'github__list_issues'"):
        await client.call_tool("github__list_issues", {})


@pytest.mark.parametrize("era", ERAS)
async def test_all_tools_are_listed_under_valid_names(
    passing: tuple[McpHarness, HutchMcpServer], era: str
) -> None:
    _, mcp_server = passing
    async with Client(mcp_server.server, mode=era) as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        assert len(listed) == 3 + len(ODD)
        assert all(len(name) <= MAX_TOOL_NAME and name.replace("-", "_").isidentifier() for name in listed)
        made = listed["github__create_issue"]
        assert made.description == "Creates an issue in a repository."
        assert made.input_schema["required"] == ["title"]
        assert made.output_schema is not None
        for name in listed:
            if name.startswith("odd"):
                assert not (await client.call_tool(name, {})).is_error


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain", [{"type": "text", "text": "plain"}]),
        ({"a": ["ü"]}, [{"type": "text", "text": '{"a":["ü"]}'}]),
        ([1, 2], [{"type": "text", "text": "[1,2]"}]),
        (None, []),
        ([{"type": "text", "text": "see"}, PIXEL], [{"type": "text", "text": "see"}, PIXEL]),
        ([{"type": "image"}], [{"type": "text", "text": '[{"type":"image"}]'}]),
        ("\ud800", [{"type": "text", "text": "\ufffd"}]),
    ],
)
async def test_result_keeps_its_form(
    passing: tuple[McpHarness, HutchMcpServer], era: str, value: Any, content: list[Any]
) -> None:
    harness, mcp_server = passing
    harness.upstream.functions["list_issues"] = returning(value)
    async with Client(mcp_server.server, mode=era) as client:
        answer = await client.call_tool("github__list_issues", {"state": "open"})
    assert harness.upstream.calls == [("github", "list_issues", {"state": "open"})]
    assert [each.model_dump(by_alias=True, exclude_none=True) for each in answer.content] == content
    assert not answer.is_error


async def test_structured_results_and_failures_are_preserved(
    passing: tuple[McpHarness, HutchMcpServer],
) -> None:
    _, mcp_server = passing
    async with Client(mcp_server.server) as client:
        await client.list_tools()
        answer = await client.call_tool("github__create_issue", {"title": "x"})
        assert answer.structured_content == {"number": 7}
        assert text_of(answer) == '{"number":7}'
        failed = await client.call_tool("github__fail", {})
        assert failed.is_error
        assert text_of(failed) == "no such repository"


async def test_structured_content_without_a_schema_is_passed_with_the_other_content(
    passing: tuple[McpHarness, HutchMcpServer],
) -> None:
    harness, mcp_server = passing
    value = {"files": ["a.pdf"]}
    content = [{"type": "text", "text": "1 file"}, PIXEL]
    harness.upstream.functions["list_issues"] = returning(McpToolResult(value, content, value))
    async with Client(mcp_server.server) as client:
        answer = await client.call_tool("github__list_issues", {})
    assert answer.structured_content == value
    assert [each.model_dump(by_alias=True, exclude_none=True) for each in answer.content] == content


# --- resources ---

LINK = {"type": "resource_link", "uri": "file:///a b?c=d/e", "name": "a"}


@pytest.fixture
async def resources(app: App) -> AsyncIterator[tuple[McpHarness, HutchMcpServer]]:
    tools = (*TOOLS, RESOURCE_READER, RESOURCE_READER._replace(server="slack"))
    harness = McpHarness(app, {"slack": "deny"}, tools)
    contents = [{"uri": LINK["uri"], "mimeType": "text/plain", "text": "\u00fc" * 40_000}]
    harness.upstream.functions.update(
        read_file=returning([LINK]), read_resource=returning({"contents": contents})
    )
    mcp_server = HutchMcpServer(harness, pass_through=True)
    yield harness, mcp_server
    mcp_server.close()


async def test_linked_resource_can_be_read_by_the_client(
    resources: tuple[McpHarness, HutchMcpServer], era: str
) -> None:
    harness, mcp_server = resources
    async with Client(mcp_server.server, mode=era) as client:
        assert client.server_capabilities.resources is not None
        assert (await client.list_resources()).resources == []
        assert "file-system__read_resource" not in await _names(client)
        (link,) = (await client.call_tool("file-system__read_file", {})).content
        assert (link.type, link.name) == ("resource_link", "a")
        read = await client.read_resource(link.uri)
    (part,) = read.contents
    assert (part.uri, part.mime_type, part.text) == (link.uri, "text/plain", "\u00fc" * 40_000)
    assert harness.upstream.calls[-1] == ("file-system", "read_resource", {"uri": LINK["uri"]})


@pytest.mark.parametrize(
    "uri",
    ["file:///a", "hutch://github/file%3A%2F%2F%2Fa", "hutch://nobody/a", "hutch://file-system", "hutch://"],
)
async def test_other_resource_is_not_found(resources: tuple[McpHarness, HutchMcpServer], uri: str) -> None:
    harness, mcp_server = resources
    async with Client(mcp_server.server) as client:
        with pytest.raises(MCPError, match="There is no resource"):
            await client.read_resource(uri)
    assert harness.upstream.calls == []


async def test_policy_applies_to_resources(resources: tuple[McpHarness, HutchMcpServer]) -> None:
    harness, mcp_server = resources
    async with Client(mcp_server.server) as client:
        with pytest.raises(MCPError, match="The policy denies slack__read_resource"):
            await client.read_resource("hutch://slack/file%3A%2F%2F%2Fa")
        assert harness.upstream.calls == []
        harness.upstream.functions["read_resource"] = failing("rpc_error", "it is gone")
        with pytest.raises(MCPError, match="it is gone"):
            await client.read_resource("hutch://file-system/file%3A%2F%2F%2Fa")


async def test_resources_are_not_passed_through_by_default(client: Client) -> None:
    assert client.server_capabilities.resources is None


async def test_long_result_is_truncated_with_a_note(passing: tuple[McpHarness, HutchMcpServer]) -> None:
    harness, mcp_server = passing
    harness.upstream.functions["list_issues"] = returning("x" * 50_000)
    async with Client(mcp_server.server) as client:
        text = text_of(await client.call_tool("github__list_issues", {}))
    assert text == "x" * MAX_CHARS + f"… truncated, {50_000 - MAX_CHARS} more characters"


async def test_progress_is_forwarded(passing: tuple[McpHarness, HutchMcpServer], era: str) -> None:
    harness, mcp_server = passing
    received: list[Any] = []

    async def call(*_: Any, on_progress: Any = None, **__: Any) -> McpToolResult:
        await on_progress(1, 3, "a third")
        return whole_result("done")

    async def on_progress(*progress: Any) -> None:
        received.append(progress)

    harness.upstream.call = call  # type: ignore[method-assign]
    async with Client(mcp_server.server, mode=era) as client:
        answer = await client.call_tool("github__list_issues", {}, progress_callback=on_progress)
    assert text_of(answer) == "done"
    assert received == [(1.0, 3.0, "a third")]


async def test_cancelled_call_is_cancelled_upstream(
    passing: tuple[McpHarness, HutchMcpServer], era: str
) -> None:
    harness, mcp_server = passing
    async with Client(mcp_server.server, mode=era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "github__wait", {})
            await harness.upstream.called.wait()
            tasks.cancel_scope.cancel()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await harness.upstream.cancelled.wait()


async def test_policy_applies_to_passed_through_calls(app: App) -> None:
    harness = McpHarness(app, {"github": "deny"})
    mcp_server = HutchMcpServer(harness, pass_through=True)
    async with Client(mcp_server.server) as client:
        answer = await client.call_tool("github__list_issues", {})
    mcp_server.close()
    assert answer.is_error
    assert "The policy denies" in text_of(answer)
    assert harness.upstream.calls == []


class ToolChangeListener:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def __call__(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.event.wait()
        self.event.clear()


async def _names(client: Client) -> list[str]:
    return [each.name for each in (await client.list_tools(cache_mode="bypass")).tools]


async def test_clients_are_notified_when_tools_change(passing: tuple[McpHarness, HutchMcpServer]) -> None:
    harness, mcp_server = passing
    changed = ToolChangeListener()
    async with Client(mcp_server.server, mode="legacy", message_handler=changed) as client:
        assert client.server_capabilities.tools.list_changed
        await _names(client)
        for number in range(2):
            harness.upstream.change(FakeTool("github", f"new_{number}"))
            await changed.wait()
            assert (await _names(client))[3:] == [f"github__new_{number}"]


async def test_clients_of_both_eras_are_notified_over_http(app: App) -> None:
    harness = McpHarness(app)
    changed = ToolChangeListener()
    async with (
        listening(harness, pass_through=True) as (url, _, _),
        Client(url, mode="legacy", message_handler=changed) as old,
        Client(url) as new,
        new.listen(tools_list_changed=True) as events,
    ):
        assert new.server_capabilities.tools.list_changed
        await _names(old)
        # Repeat the change until the old client is notified, because the client's notification stream opens
        # in the background.
        await _wait_until_notified(harness, changed)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await anext(aiter(events))
        assert "github__changed" in await _names(new)
        assert "github__changed" in await _names(old)


async def _wait_until_notified(harness: McpHarness, changed: ToolChangeListener) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not changed.event.is_set():
            harness.upstream.change(FakeTool("github", "changed"))
            await asyncio.sleep(0.02)


async def test_fixed_tools_announce_no_list_changed_capability(client: Client) -> None:
    assert not client.server_capabilities.tools.list_changed


async def test_trace_of_a_client_is_not_passed_on_without_tracing(app: App) -> None:
    harness = McpHarness(app)
    transport = StdioConfig(command=sys.executable, args=tuple(forked_script(Path(trace_echo.__file__))))
    servers = McpServers(config(ServerConfig(name="echo", transport=transport)), app.settings)
    harness.use_servers(servers)
    mcp_server = HutchMcpServer(harness, pass_through=True)
    meta: Any = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "vendor=1"}
    code = {"code": "return await tools.echo.trace({})", "language": "javascript"}
    try:
        for era in ERAS:
            async with Client(mcp_server.server, mode=era) as client:
                for name, arguments in (("echo__trace", {}), ("run_code", code)):
                    seen = text_of(await client.call_tool(name, arguments, meta=meta))
                    assert '"meta": null' in seen or '"meta":null' in seen, (era, name, seen)
    finally:
        mcp_server.close()
        await servers.close()
