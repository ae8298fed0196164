"""Results and errors of calls, which are the same over every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.mcp_client.conftest import StartServers, http_server, stdio_server
from tests.support.mcp_servers.everything import LONG_NAME, PIXEL

from hutch.errors import UpstreamError
from hutch.mcp_client.servers import McpServers

PICTURE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


async def failure(servers: McpServers, server: str, tool: str, **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await servers.call(server, tool, arguments)
    assert (caught.value.server, caught.value.tool) == (server, tool)
    return caught.value


async def test_all_servers_are_connected_with_all_pages_of_tools(connected: McpServers) -> None:
    assert [each.name for each in connected.servers()] == ["stdio", "http", "json", "sse"]
    for each in connected.servers():
        assert each.state == "connected", each.error
        assert each.error is None
        assert each.tools == 32
        assert (each.title, each.instructions) == ("Everything", "Call what you like.")


async def test_tools_have_the_servers_descriptions(connected: McpServers, transport: str) -> None:
    tools = {tool.name: tool for tool in await connected.tools() if tool.server == transport}
    assert len(tools) == 32
    add = tools["add"]
    assert add.description == "Adds two numbers."
    assert add.input_schema["properties"]["a"]["type"] == "number"
    assert add.output_schema is not None
    assert add.output_schema["required"] == ["sum"]
    assert add.annotations == {"readOnlyHint": True}
    assert tools["echo"].output_schema is None
    assert "*/" in (tools["comment"].description or "")


@pytest.mark.parametrize(
    "value", ["hi", "", "0", "null", "12", "true", '"quoted"', "{broken", "ünï\n\u2028\0", "[1, 2"]
)
async def test_text_is_returned_unchanged(connected: McpServers, transport: str, value: str) -> None:
    assert await connected.call(transport, "echo", {"value": value}) == value


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, [], {}, [1, 2.5, "x"]])
async def test_text_with_a_json_object_or_array_is_parsed(
    connected: McpServers, transport: str, value: object
) -> None:
    assert await connected.call(transport, "echo", {"value": value}) == value


async def test_tool_with_a_schema_returns_structured_content(connected: McpServers, transport: str) -> None:
    assert await connected.call(transport, "add", {"a": 1, "b": 2.5}) == {"sum": 3.5}


async def test_structured_content_without_a_schema_is_returned(connected: McpServers, transport: str) -> None:
    assert await connected.call(transport, "structured", {}) == {"files": ["a"]}
    whole = await connected.call(transport, "structured", {}, whole=True)
    assert whole.value == whole.structured == {"files": ["a"]}
    assert whole.content == [{"type": "text", "text": "One file."}]


async def test_resource_that_a_tool_links_to_can_be_read(connected: McpServers, transport: str) -> None:
    *_, link = await connected.call(transport, "blocks", {})
    read = await connected.call(transport, "read_resource", {"uri": link["uri"]})
    assert read == {"contents": [{"uri": "file:///a", "text": "The text of a."}]}
    (pixel,) = (await connected.call(transport, "read_resource", {"uri": "file:///pixel"}))["contents"]
    assert pixel["blob"] == PICTURE["data"]


async def test_unknown_resource_carries_the_servers_message(connected: McpServers, transport: str) -> None:
    error = await failure(connected, transport, "read_resource", uri="file:///b")
    assert (error.kind, error.message) == ("rpc_error", "Resource not found: file:///b")


@pytest.mark.parametrize("uri", ["", None, 3, "x" * 10_000], ids=repr)
async def test_invalid_resource_uri_is_rejected(connected: McpServers, uri: object) -> None:
    error = await failure(connected, "stdio", "read_resource", uri=uri)
    assert error.kind == "invalid_arguments"
    assert error.message == "uri: expected a URI of at most 8192 characters"


async def test_oversized_resource_fails_only_its_own_call(start: StartServers, urls: dict[str, str]) -> None:
    servers = await start(
        stdio_server("everything"), http_server("http", urls["http"]), max_line_bytes=100_000
    )
    for name in ("everything", "http"):
        assert (await failure(servers, name, "read_resource", uri="text:200000")).kind == "too_large"
        read = await servers.call(name, "read_resource", {"uri": "text:3"})
        assert read["contents"][0]["text"] == "xxx"


@pytest.mark.parametrize("options", [{"exclude": ("read_resource",)}, {"include": ("echo",)}], ids=repr)
async def test_filters_apply_to_the_resource_reader(start: StartServers, options: dict[str, Any]) -> None:
    servers = await start(stdio_server("everything", **options))
    assert "read_resource" not in [tool.name for tool in await servers.tools()]
    assert (await failure(servers, "everything", "read_resource", uri="file:///a")).kind == "unknown_tool"


async def test_content_blocks_keep_their_structure(connected: McpServers, transport: str) -> None:
    assert await connected.call(transport, "image", None) == [PICTURE]
    first, picture, link = await connected.call(transport, "blocks", {})
    assert first == {"type": "text", "text": "first"}
    assert picture == PICTURE
    assert link == {"type": "resource_link", "uri": "file:///a", "name": "a"}
    assert await connected.call(transport, "nothing", {}) is None


async def test_failed_tool_raises_its_own_message(connected: McpServers, transport: str) -> None:
    error = await failure(connected, transport, "fail", city="Ys")
    assert (error.kind, error.message) == ("tool_error", "no such city: Ys")


async def test_protocol_error_carries_the_servers_message(connected: McpServers, transport: str) -> None:
    error = await failure(connected, transport, "reject")
    assert (error.kind, error.message) == ("rpc_error", "the quota is used up")
    assert error.details == {"code": -32050, "data": {"retry": 60}}


async def test_result_that_violates_the_output_schema_is_rejected(
    connected: McpServers, transport: str
) -> None:
    error = await failure(connected, transport, "broken_promise")
    assert error.kind == "invalid_result"
    assert '"many" is not of type "number" - at `$.sum`' in error.message


@pytest.mark.parametrize(
    "name", ["get_user", "get-user", "delete", "grüße", "日本語", "a b.c/d", "comment", LONG_NAME]
)
async def test_tools_with_unusual_names_are_called_by_name(
    connected: McpServers, transport: str, name: str
) -> None:
    assert await connected.call(transport, name, {"id": "7"}) == {"tool": name, "given": {"id": "7"}}


# The transport "json" is left out, because plain JSON responses cannot contain progress.
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_progress_is_reported_in_order(connected: McpServers, transport: str) -> None:
    reported: list[tuple[float, float | None, str | None]] = []

    async def later(*progress: Any) -> None:
        reported.append(progress)

    for callback in (lambda *progress: reported.append(progress), later):
        reported.clear()
        await connected.call(transport, "progress", {"steps": 3}, on_progress=callback)
        assert reported == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def counts(servers: McpServers, server: str) -> tuple[int, int]:
    found = await servers.call(server, "counts", {})
    return found["started"], found["cancelled"]


async def test_call_timeout_notifies_the_server(connected: McpServers, transport: str) -> None:
    before = await counts(connected, transport)
    with pytest.raises(UpstreamError) as caught:
        await connected.call(transport, "slow", {"seconds": 60}, timeout=0.2)
    assert caught.value.kind == "timeout"
    assert "within 0.2 s" in caught.value.message
    await until_cancelled(connected, transport, before)


async def test_cancelled_call_is_cancelled_at_the_server(connected: McpServers, transport: str) -> None:
    before = await counts(connected, transport)
    call = asyncio.ensure_future(connected.call(transport, "slow", {"seconds": 60}))
    async with asyncio.timeout(20):
        while (await counts(connected, transport))[0] == before[0]:
            pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_cancelled(connected, transport, before)


async def until_cancelled(servers: McpServers, server: str, before: tuple[int, int]) -> None:
    async with asyncio.timeout(20):
        while await counts(servers, server) != (before[0] + 1, before[1] + 1):
            pass
    assert {each.name: each.state for each in servers.servers()}[server] == "connected"


async def test_concurrent_calls_get_their_own_results(connected: McpServers, transport: str) -> None:
    calls = (connected.call(transport, "echo", {"value": f"v{number}"}) for number in range(100))
    assert await asyncio.gather(*calls) == [f"v{number}" for number in range(100)]


async def test_unknown_server_and_tool_errors_name_the_known_ones(connected: McpServers) -> None:
    error = await failure(connected, "stdio", "get_usr")
    assert error.kind == "unknown_tool"
    assert "no tool 'get_usr'. Did you mean get_user?" in error.message
    with pytest.raises(UpstreamError, match="no server 'nope'; configured: stdio, http, json, sse") as caught:
        await connected.call("nope", "echo", {})
    assert caught.value.kind == "unknown_server"


@pytest.mark.parametrize("arguments", [[1], "text", 7, {"value": "\ud800"}, {"value": {1, 2}.__iter__()}])
async def test_invalid_arguments_are_rejected_without_side_effects(
    connected: McpServers, transport: str, arguments: Any
) -> None:
    with pytest.raises(UpstreamError) as caught:
        await connected.call(transport, "echo", arguments)
    assert caught.value.kind == "invalid_arguments"
    assert await connected.call(transport, "echo", {"value": "hi"}) == "hi"


async def test_large_result_within_the_limit_arrives(connected: McpServers, transport: str) -> None:
    size = 500_000 if transport == "sse" else 4_000_000
    assert len(await connected.call(transport, "large", {"bytes": size})) == size
