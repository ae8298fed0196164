"""Instructions, tool list, search and declarations of the MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema_rs
import pytest
from mcp import Client, MCPError
from tests.protocols.mcp.harness import ERAS, McpHarness, run, text_of
from tests.protocols.toolscript.fakes import FakeTool

from hutch.protocols.mcp.results import MAX_CHARS
from hutch.protocols.mcp.server import LIST_TTL_MS, HutchMcpServer


async def test_instructions_describe_code_mode_and_servers(client: Client) -> None:
    text = client.instructions or ""
    assert "await tools.github.listIssues(" in text
    assert "import" not in text
    assert "- tools.github: GitHub (4 tools)" in text
    assert "- tools.fileSystem (1 tool)" in text
    assert "- slack (not connected)" in text
    assert client.server_info is not None
    assert client.server_info.name == "hutch"


async def test_initialize_does_not_wait_for_hanging_servers(
    harness: McpHarness, mcp_server: HutchMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.protocols.mcp.server.INITIALIZE_SECONDS", 0.01)
    monkeypatch.setattr("hutch.protocols.mcp.server.DISCOVER_SECONDS", 0.01)
    harness.upstream.tools = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    for era in ERAS:
        async with Client(mcp_server.server, mode=era) as client:
            assert "- github: GitHub (no tools)" in (client.instructions or "")


async def test_tools_have_valid_schemas(client: Client, era: str) -> None:
    answer = await client.list_tools()
    if era != "legacy":
        assert (answer.ttl_ms, answer.cache_scope) == (LIST_TTL_MS, "private")
    listed = {each.name: each for each in answer.tools}
    assert [*listed] == ["search_tools", "describe_tools", "run_code"]
    assert "github, file-system, slack" in (listed["search_tools"].description or "")
    for each in listed.values():
        assert each.input_schema["type"] == "object"
        for schema in (each.input_schema, each.output_schema):
            if schema is not None:
                jsonschema_rs.meta.validate(schema)
    assert listed["run_code"].input_schema["required"] == ["code"]
    assert listed["search_tools"].annotations.read_only_hint


async def test_search_returns_ranked_tools_with_reasons_and_signatures(client: Client) -> None:
    answer = await client.call_tool(
        "search_tools", {"query": "create isue", "limit": 2, "scores": True, "format": "json"}
    )
    best, *others = answer.structured_content["tools"]
    assert best["name"] == "tools.github.createIssue"
    assert (
        best["signature"] == "tools.github.createIssue(args: { title: string }): Promise<{ number: number }>"
    )
    assert best["description"] == "Creates an issue in a repository."
    assert "issue (for isue)" in best["reason"]
    assert 0 < best["score"] <= 1
    assert all(each["score"] <= best["score"] for each in others)
    answer = await client.call_tool("search_tools", {"query": "create isue", "limit": 2, "scores": True})
    text = text_of(answer)
    assert best["signature"] in text
    assert best["description"] in text
    assert best["reason"] in text


async def test_search_shows_scores_only_on_request_and_each_tool_once(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "create issue", "limit": 1})
    assert answer.structured_content is None
    assert text_of(answer) == (
        "tools.github.createIssue(args: { title: string }): Promise<{ number: number }>\n"
        "  Creates an issue in a repository."
    )


async def test_search_without_results_suggests_the_next_step(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "zzzzqqqq", "format": "json"})
    assert answer.structured_content == {"tools": [], "truncated": False}
    answer = await client.call_tool("search_tools", {"query": "zzzzqqqq"})
    assert "describe_tools" in text_of(answer)


@pytest.mark.parametrize(
    "name",
    ["tools.github.createIssue", "github.createIssue", "github__create_issue", "github__createIssue"],
)
async def test_tool_is_described_by_any_of_its_names(client: Client, name: str) -> None:
    text = text_of(await client.call_tool("describe_tools", {"names": [name]}))
    assert "createIssue(args: {" in text
    assert "/** In a few words. */" in text
    assert "listIssues" not in text


@pytest.mark.parametrize("name", ["github", "tools.github"])
async def test_server_is_described_by_any_of_its_names(client: Client, name: str) -> None:
    text = text_of(await client.call_tool("describe_tools", {"filter": name}))
    assert "createIssue" in text
    assert "listIssues" in text
    assert "readFile" not in text


async def test_all_tools_are_described_on_one_line_each_by_default(client: Client) -> None:
    text = text_of(await client.call_tool("describe_tools"))
    assert "createIssue(args: { title: string }): Promise<{ number: number }>; // Creates an issue" in text
    assert "readFile" in text
    full = text_of(await client.call_tool("describe_tools", {"detail": "full"}))
    assert "/** In a few words. */" in full


async def test_unknown_name_is_reported(client: Client) -> None:
    answer = await client.call_tool("describe_tools", {"names": ["gitlab"]})
    assert answer.is_error
    assert text_of(answer) == "There is no tool or server 'gitlab'; did you mean tools.github?"
    other = await client.call_tool("describe_tools", {"names": ["weather"]})
    assert text_of(other) == "There is no tool or server 'weather'; search_tools finds tools."
    misspelt = await client.call_tool("describe_tools", {"names": ["github.createIsue"]})
    expected = "There is no tool or server 'github.createIsue'; did you mean tools.github.createIssue?"
    assert text_of(misspelt) == expected
    some = await client.call_tool("describe_tools", {"names": ["gitlab", "github"]})
    assert not some.is_error
    assert 'There is no tool or server "gitlab"' in text_of(some)


async def test_long_declarations_are_truncated_with_a_note(
    harness: McpHarness, mcp_server: HutchMcpServer
) -> None:
    harness.upstream.tool_list = [FakeTool("big", f"tool_{number}", "x" * 300) for number in range(500)]
    async with Client(mcp_server.server) as client:
        text = text_of(await client.call_tool("describe_tools", {"names": ["big"]}))
        assert len(text) < MAX_CHARS + 200
        assert text.endswith('more characters: name fewer tools, or ask for detail: "compact"')
        found = await client.call_tool("search_tools", {"query": "tool", "limit": 50})
        assert len(text_of(found)) < MAX_CHARS + 200


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("run_code", {}, "missing required field `code`"),
        ("run_code", {"code": 5}, "code: expected `str`, got `int`"),
        (
            "run_code",
            {"code": "1", "language": "python"},
            "language: invalid enum value 'python'; expected toolscript, javascript",
        ),
        ("run_code", {"code": "1", "timeout": 5}, "unknown field `timeout`; did you mean `timeout_seconds`?"),
        (
            "run_code",
            {"code": 5, "lang": "js", "check": []},
            "unknown field `lang`; did you mean `language`?",
        ),
        (
            "run_code",
            {"code": 5, "lang": "js", "check": []},
            "; code: expected `str`, got `int`; check: expected",
        ),
        ("run_code", {"code": "1", "timeout_seconds": -1}, "timeout_seconds: expected `float` > 0"),
        ("run_code", {"code": "1", "timeout_seconds": 1e6}, "timeout_seconds: is 1e+06; the maximum is 300"),
        ("search_tools", {"query": "x", "limit": 0}, "limit: expected `int` >= 1"),
        ("describe_tools", {"names": "github"}, "names: expected `array`, got `str`"),
    ],
)
async def test_invalid_arguments_are_named(
    client: Client, tool: str, arguments: dict[str, Any], message: str
) -> None:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert message in text_of(answer)


async def test_lenient_arguments_are_accepted(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "issue", "limit": "1", "format": "json"})
    assert len(answer.structured_content["tools"]) == 1
    answer = await run(client, "return 1", "javascript", timeout_seconds=None)
    assert not answer.is_error


async def test_unknown_tool_is_an_error_with_a_hint(client: Client) -> None:
    with pytest.raises(MCPError, match=r"There is no tool 'run_cod'\. Did you mean run_code\?"):
        await client.call_tool("run_cod", {})


async def test_internal_error_hides_its_details(
    harness: McpHarness, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    harness.gateway.search = broken  # type: ignore[method-assign, assignment]
    answer = await client.call_tool("search_tools", {"query": "x"})
    assert answer.is_error
    assert text_of(answer) == "Hutch failed; its log says why"
    assert "secret" in caplog.text
