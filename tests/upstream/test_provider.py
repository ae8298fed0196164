"""A server's tools, lent to a guest."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import anyio
import pytest
from tests.conftest import Run
from tests.upstream.conftest import Started, program

from hutch.errors import ToolError, UpstreamError
from hutch.session.tools import ToolContext
from hutch.upstream.servers import Upstreams


def context() -> ToolContext:
    return ToolContext(run_id="r", provider="p", tool="t", deadline=0.0, cancelled=anyio.Event())


async def test_names_are_safe_and_every_tool_is_there(everywhere: Upstreams) -> None:
    provider = everywhere.provider("stdio")
    assert provider.name == "stdio"
    assert len(provider.tools) == 30
    assert provider.original_name("get_user__2") == "get-user"
    assert provider.original_name("delete_") == "delete"
    assert "function add(input?: {" in provider.declarations()
    assert "sum: number" in provider.declarations()


async def test_guest_calls_tools_of_a_server(everywhere: Upstreams, run: Run) -> None:
    code = """
        const { sum } = await stdio.add({ a: 40, b: 2 });
        const user = await stdio.get_user__2({ id: "7" });
        let failure;
        try { await stdio.fail({ city: "Ys" }); } catch (error) { failure = error.message; }
        return { sum, user, failure, zero: await stdio.zero() };
    """
    result = await run(code, tools=[everywhere.provider("stdio")])
    assert result.result == {
        "sum": 42,
        "user": {"tool": "get-user", "given": {"id": "7"}},
        "failure": "no such city: Ys",
        "zero": "0",
    }


async def test_dispatch_gives_json_and_raises_tool_errors_alone(everywhere: Upstreams) -> None:
    provider = everywhere.provider("http")
    assert await provider.dispatch("add", {"a": 1, "b": 2}, context()) == b'{"sum":3}'
    assert await provider.dispatch("zero", None, context()) == b'"0"'
    with pytest.raises(ToolError, match="the quota is used up") as caught:
        await provider.dispatch("reject", {}, context())
    assert caught.value.tool_code == "tool_error"
    with pytest.raises(ToolError, match="expected an object of arguments, got a list") as caught:
        await provider.dispatch("echo", [1], context())
    assert caught.value.tool_code == "validation_error"


async def test_no_two_servers_have_the_same_name_in_a_guest(start: Started) -> None:
    names = ("my-server", "my_server", "undefined", "class", "日本")
    upstreams = await start(*(program("Server", called=name) for name in names), eager=False)
    found = [upstreams.provider(name).name for name in names]
    assert found == ["my_server", "my_server__2", "undefined_", "class_", "_"]


async def test_provider_of_an_unknown_server_is_refused(everywhere: Upstreams) -> None:
    with pytest.raises(UpstreamError, match="no server 'nope'"):
        everywhere.provider("nope")


async def test_cancelled_execution_cancels_its_call(everywhere: Upstreams) -> None:
    provider = everywhere.provider("stdio")
    before = await everywhere.call("stdio", "counts", {})
    call = asyncio.ensure_future(provider.dispatch("slow", {}, context()))
    async with asyncio.timeout(20):
        while (await everywhere.call("stdio", "counts", {}))["started"] == before["started"]:
            pass
        call.cancel()
        while (await everywhere.call("stdio", "counts", {}))["cancelled"] == before["cancelled"]:
            pass


def test_rooms_are_entered_without_the_heavy_packages() -> None:
    modules = "hutch.upstream.servers, hutch.upstream.config, hutch.upstream.results, hutch.vault.tokens"
    script = f"import {modules}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"mcp", "mcp_types", "pydantic", "httpx2", "cryptography", "starlette", "jsonschema_rs"}
    assert heavy & set(done.stdout.split()) == set()
