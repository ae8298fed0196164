"""What a client hears of the door: its introduction, its tools, search and declarations."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema_rs
import pytest
from mcp import Client, MCPError
from tests.doors.mcp.houses import House, run, text_of
from tests.doors.toolscript.scripted import Given

from hutch.doors.mcp.answers import MOST_CHARS
from hutch.doors.mcp.server import Door


async def test_a_client_is_told_of_code_mode_and_of_the_servers_that_there_are(client: Client) -> None:
    told = client.instructions or ""
    assert 'import { tools } from "toolscript"' in told
    assert "- tools.github: GitHub (4 tools)" in told
    assert "- tools.fileSystem (1 tool)" in told
    assert "- slack (not connected)" in told
    assert client.server_info is not None
    assert client.server_info.name == "hutch"


async def test_a_client_does_not_wait_for_servers_that_hang(
    house: House, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.doors.mcp.server.INTRODUCTION_SECONDS", 0.01)
    house.upstream.tools = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    async with Client(door.server, mode="legacy") as client:
        assert "- github: GitHub (no tools)" in (client.instructions or "")


async def test_the_tools_are_described_with_schemas_that_are_valid(client: Client) -> None:
    listed = {each.name: each for each in (await client.list_tools()).tools}
    assert [*listed] == ["search_tools", "describe_tools", "run_code"]
    assert "github, file-system, slack" in (listed["search_tools"].description or "")
    for each in listed.values():
        assert each.input_schema["type"] == "object"
        for schema in (each.input_schema, each.output_schema):
            if schema is not None:
                jsonschema_rs.meta.validate(schema)
    assert listed["run_code"].input_schema["required"] == ["code"]
    assert listed["search_tools"].annotations.read_only_hint


async def test_search_gives_ranked_tools_with_reasons_and_signatures(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "create isue", "limit": 2})
    best, *others = answer.structured_content["tools"]
    assert best["name"] == "tools.github.createIssue"
    assert (
        best["signature"] == "tools.github.createIssue(args: { title: string }): Promise<{ number: number }>"
    )
    assert best["description"] == "Creates an issue in a repository."
    assert "issue (for isue)" in best["reason"]
    assert 0 < best["score"] <= 1
    assert all(each["score"] <= best["score"] for each in others)
    text = text_of(answer)
    assert best["signature"] in text
    assert best["description"] in text
    assert best["reason"] in text


async def test_a_search_that_finds_nothing_says_what_to_do_next(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "zzzzqqqq"})
    assert answer.structured_content == {"tools": [], "truncated": False}
    assert "describe_tools" in text_of(answer)


@pytest.mark.parametrize(
    "name",
    ["tools.github.createIssue", "github.createIssue", "github__create_issue", "github__createIssue"],
)
async def test_a_tool_is_described_by_any_of_its_names(client: Client, name: str) -> None:
    text = text_of(await client.call_tool("describe_tools", {"names": [name]}))
    assert "createIssue(args: {" in text
    assert "/** In a few words. */" in text
    assert "listIssues" not in text


@pytest.mark.parametrize("name", ["github", "tools.github"])
async def test_a_server_is_described_by_any_of_its_names(client: Client, name: str) -> None:
    text = text_of(await client.call_tool("describe_tools", {"filter": name}))
    assert "createIssue" in text
    assert "listIssues" in text
    assert "readFile" not in text


async def test_without_names_all_tools_are_described_in_a_line_each(client: Client) -> None:
    text = text_of(await client.call_tool("describe_tools"))
    assert "createIssue(args: { title: string }): Promise<{ number: number }>; // Creates an issue" in text
    assert "readFile" in text
    full = text_of(await client.call_tool("describe_tools", {"detail": "full"}))
    assert "/** In a few words. */" in full


async def test_a_name_that_nobody_has_is_said_to_be_nobodys(client: Client) -> None:
    answer = await client.call_tool("describe_tools", {"names": ["gitlab"]})
    assert answer.is_error
    assert 'Nothing is called "gitlab"' in text_of(answer)
    some = await client.call_tool("describe_tools", {"names": ["gitlab", "github"]})
    assert not some.is_error
    assert 'Nothing is called "gitlab"' in text_of(some)


async def test_long_declarations_are_truncated_where_one_sees_it(house: House, door: Door) -> None:
    house.upstream.given = [Given("big", f"tool_{number}", "x" * 300) for number in range(500)]
    async with Client(door.server) as client:
        text = text_of(await client.call_tool("describe_tools", {"names": ["big"]}))
        assert len(text) < MOST_CHARS + 200
        assert text.endswith('more characters: name fewer tools, or ask for detail: "compact"')
        found = await client.call_tool("search_tools", {"query": "tool", "limit": 50})
        assert len(text_of(found)) < MOST_CHARS + 200


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("run_code", {}, "missing required field `code`"),
        ("run_code", {"code": 5}, "code: expected `str`, got `int`"),
        ("run_code", {"code": "1", "language": "python"}, "language: invalid enum value 'python'"),
        ("run_code", {"code": "1", "timeout": 5}, "unknown field `timeout`"),
        ("run_code", {"code": "1", "timeout_seconds": -1}, "timeout_seconds: expected `float` > 0"),
        ("run_code", {"code": "1", "timeout_seconds": 1e6}, "timeout_seconds: is 1e+06; the most is 300"),
        ("search_tools", {"query": "x", "limit": 0}, "limit: expected `int` >= 1"),
        ("describe_tools", {"names": "github"}, "names: expected `array`, got `str`"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(
    client: Client, tool: str, arguments: dict[str, Any], said: str
) -> None:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert said in text_of(answer)


async def test_arguments_may_be_as_models_write_them(client: Client) -> None:
    answer = await client.call_tool("search_tools", {"query": "issue", "limit": "1"})
    assert len(answer.structured_content["tools"]) == 1
    answer = await run(client, "return 1", "javascript", timeout_seconds=None)
    assert not answer.is_error


async def test_a_tool_that_is_not_there_is_an_error_with_a_hint(client: Client) -> None:
    with pytest.raises(MCPError, match=r"There is no tool 'run_cod'\. Did you mean run_code\?"):
        await client.call_tool("run_cod", {})


async def test_a_fault_of_ours_says_nothing_of_what_it_was(
    house: House, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    house.gateway.search = broken  # type: ignore[method-assign, assignment]
    answer = await client.call_tool("search_tools", {"query": "x"})
    assert answer.is_error
    assert text_of(answer) == "Hutch failed; its log says why"
    assert "secret" in caplog.text
