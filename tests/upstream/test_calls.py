"""What calls give and how they fail: the same over every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.mcp_servers.everything import LONG_NAME, PIXEL

from hutch.errors import UpstreamError
from hutch.upstream.servers import Upstreams

PICTURE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


async def failure(upstreams: Upstreams, server: str, tool: str, **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call(server, tool, arguments)
    assert (caught.value.server, caught.value.tool) == (server, tool)
    return caught.value


async def test_all_servers_are_connected_with_all_pages_of_their_tools(everywhere: Upstreams) -> None:
    assert [each.name for each in everywhere.servers()] == ["stdio", "http", "json", "sse"]
    for each in everywhere.servers():
        assert each.state == "connected", each.error
        assert each.error is None
        assert each.tools == 30
        assert (each.title, each.instructions) == ("Everything", "Call what you like.")


async def test_tools_are_described_as_their_server_does(everywhere: Upstreams, transport: str) -> None:
    tools = {tool.name: tool for tool in await everywhere.tools() if tool.server == transport}
    assert len(tools) == 30
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
async def test_text_stays_text(everywhere: Upstreams, transport: str, value: str) -> None:
    assert await everywhere.call(transport, "echo", {"value": value}) == value


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, [], {}, [1, 2.5, "x"]])
async def test_text_that_is_an_object_or_a_list_is_that(
    everywhere: Upstreams, transport: str, value: object
) -> None:
    assert await everywhere.call(transport, "echo", {"value": value}) == value


async def test_structured_content_is_the_result_of_a_tool_with_a_schema(
    everywhere: Upstreams, transport: str
) -> None:
    assert await everywhere.call(transport, "add", {"a": 1, "b": 2.5}) == {"sum": 3.5}


async def test_blocks_and_pictures_keep_their_structure(everywhere: Upstreams, transport: str) -> None:
    assert await everywhere.call(transport, "image", None) == [PICTURE]
    first, picture, link = await everywhere.call(transport, "blocks", {})
    assert first == {"type": "text", "text": "first"}
    assert picture == PICTURE
    assert link == {"type": "resource_link", "uri": "file:///a", "name": "a"}
    assert await everywhere.call(transport, "nothing", {}) is None


async def test_tool_that_fails_raises_its_own_text(everywhere: Upstreams, transport: str) -> None:
    error = await failure(everywhere, transport, "fail", city="Ys")
    assert (error.kind, error.message) == ("tool_error", "no such city: Ys")


async def test_error_of_the_protocol_carries_the_servers_message(
    everywhere: Upstreams, transport: str
) -> None:
    error = await failure(everywhere, transport, "reject")
    assert (error.kind, error.message) == ("rpc_error", "the quota is used up")
    assert error.details == {"code": -32050, "data": {"retry": 60}}


async def test_result_that_breaks_the_tools_own_promise_is_refused(
    everywhere: Upstreams, transport: str
) -> None:
    error = await failure(everywhere, transport, "broken_promise")
    assert error.kind == "invalid_result"
    assert '"many" is not of type "number" - at `$.sum`' in error.message


@pytest.mark.parametrize(
    "name", ["get_user", "get-user", "delete", "grüße", "日本語", "a b.c/d", "comment", LONG_NAME]
)
async def test_oddly_named_tools_are_called_by_their_own_names(
    everywhere: Upstreams, transport: str, name: str
) -> None:
    assert await everywhere.call(transport, name, {"id": "7"}) == {"tool": name, "given": {"id": "7"}}


# A plain JSON answer has no room for it.
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_progress_is_heard_in_its_order(everywhere: Upstreams, transport: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def later(*progress: Any) -> None:
        heard.append(progress)

    for hear in (lambda *progress: heard.append(progress), later):
        heard.clear()
        await everywhere.call(transport, "progress", {"steps": 3}, on_progress=hear)
        assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def counts(upstreams: Upstreams, server: str) -> tuple[int, int]:
    found = await upstreams.call(server, "counts", {})
    return found["started"], found["cancelled"]


async def test_call_that_takes_too_long_fails_and_its_server_is_told(
    everywhere: Upstreams, transport: str
) -> None:
    before = await counts(everywhere, transport)
    with pytest.raises(UpstreamError) as caught:
        await everywhere.call(transport, "slow", {"seconds": 60}, timeout=0.2)
    assert caught.value.kind == "timeout"
    assert "within 0.2 s" in caught.value.message
    await until_cancelled(everywhere, transport, before)


async def test_cancelled_call_is_cancelled_in_the_server(everywhere: Upstreams, transport: str) -> None:
    before = await counts(everywhere, transport)
    call = asyncio.ensure_future(everywhere.call(transport, "slow", {"seconds": 60}))
    async with asyncio.timeout(20):
        while (await counts(everywhere, transport))[0] == before[0]:
            pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_cancelled(everywhere, transport, before)


async def until_cancelled(upstreams: Upstreams, server: str, before: tuple[int, int]) -> None:
    async with asyncio.timeout(20):
        while await counts(upstreams, server) != (before[0] + 1, before[1] + 1):
            pass
    assert {each.name: each.state for each in upstreams.servers()}[server] == "connected"


async def test_many_calls_at_once_each_get_their_own_answer(everywhere: Upstreams, transport: str) -> None:
    calls = (everywhere.call(transport, "echo", {"value": f"v{number}"}) for number in range(100))
    assert await asyncio.gather(*calls) == [f"v{number}" for number in range(100)]


async def test_unknown_server_and_tool_are_named_with_what_there_is(everywhere: Upstreams) -> None:
    error = await failure(everywhere, "stdio", "get_usr")
    assert error.kind == "unknown_tool"
    assert "no tool 'get_usr'. Did you mean get_user?" in error.message
    with pytest.raises(UpstreamError, match="no server 'nope'; there is: stdio, http, json, sse") as caught:
        await everywhere.call("nope", "echo", {})
    assert caught.value.kind == "unknown_server"


@pytest.mark.parametrize("arguments", [[1], "text", 7, {"value": "\ud800"}, {"value": {1, 2}.__iter__()}])
async def test_arguments_that_are_none_are_refused_and_harm_nobody(
    everywhere: Upstreams, transport: str, arguments: Any
) -> None:
    with pytest.raises(UpstreamError) as caught:
        await everywhere.call(transport, "echo", arguments)
    assert caught.value.kind == "invalid_arguments"
    assert await everywhere.call(transport, "echo", {"value": "hi"}) == "hi"


async def test_large_answers_within_the_bound_arrive(everywhere: Upstreams, transport: str) -> None:
    size = 500_000 if transport == "sse" else 4_000_000
    assert len(await everywhere.call(transport, "large", {"bytes": size})) == size
