"""The gateway with a real MCP server, called from a real Deno."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.protocols.toolscript.fakes import Deno, GatewayHarness, listening
from tests.support.forked import forked_script
from tests.support.mcp_servers import everything
from tests.support.processes import TIMEOUT_SECONDS

from hutch.mcp_client.config import McpConfig, ServerConfig, StdioConfig
from hutch.mcp_client.servers import McpServers
from hutch.settings import Settings


class ConnectedServers(McpServers):
    """Real MCP servers. The attribute `released` exists because the harness reads it from its fake
    servers.
    """

    released = asyncio.Event()


@pytest.fixture
async def harness() -> AsyncIterator[GatewayHarness]:
    working = StdioConfig(command=sys.executable, args=tuple(forked_script(Path(everything.__file__))))
    missing = StdioConfig(command="no-such-program")
    servers = [
        ServerConfig(name="every-thing", transport=working),
        ServerConfig(name="gone", transport=missing),
    ]
    async with ConnectedServers(McpConfig({each.name: each for each in servers}), Settings()) as mcp_servers:
        await mcp_servers.start()
        yield GatewayHarness(mcp_servers)  # type: ignore[arg-type]


SCRIPT = """
import { ToolError, tools } from "toolscript";
const all = tools.everyThing;
const failed = (error: ToolError) => [error.name, error.server, error.tool, error.message, error.details];
const sum: number = (await all.add({ a: 1, b: 2 })).sum;
const [, , link] = await all.blocks();
const { contents } = await all.readResource({ uri: link.uri });
const text: string | undefined = contents[0].text;
console.log(JSON.stringify([
  sum,
  text,
  await all.structured(),
  await all.zero(),
  await all.fail({ city: "Ys" }).catch(failed),
  await all.reject().catch(failed),
  await all.getUser({ id: "1" }),
  await all.getUser_2(),
  await all.getUserName(),
  await all.delete(),
  await all.grüße(),
  await all.日本語(),
  await all.aBCD(),
]));
"""


async def test_script_calls_the_tools_of_a_real_server(harness: GatewayHarness, tmp_path: Path) -> None:
    async with listening(harness) as url:
        done = await Deno(tmp_path).run(url, SCRIPT, check=True)
    assert done.code == 0, done.err
    total, text, structured, zero, failed, rejected, given, *named = json.loads(done.out)
    assert (total, zero) == (3, "0")
    assert (text, structured) == ("The text of a.", {"files": ["a"]})
    assert failed[:4] == ["ToolError", "every-thing", "fail", "no such city: Ys"]
    assert rejected[2:4] == ["reject", "the quota is used up"]
    assert given == {"tool": "get_user", "given": {"id": "1"}}
    assert [each["tool"] for each in named] == [
        "get-user",
        "getUserName",
        "delete",
        "grüße",
        "日本語",
        "a b.c/d",
    ]


async def test_server_that_does_not_start_is_reported_and_the_other_works(harness: GatewayHarness) -> None:
    status = (await harness.get("/status")).json()
    assert [(each["name"], each["state"]) for each in status["servers"]] == [
        ("every-thing", "connected"),
        ("gone", "failed"),
    ]
    assert "no-such-program" in status["servers"][1]["error"]
    assert status["collisions"][0]["became"] == {"get_user": "getUser", "get-user": "getUser_2"}
    assert (await harness.call("gone__anything")).status_code == 502
    assert (await harness.call("every-thing__echo", {"value": {"a": 1}})).json() == {"a": 1}
    found = (await harness.get("/search?q=ad+two+numbrs")).json()
    assert found[0]["tool"]["qualifiedName"] == "every-thing__add"


async def test_unencodable_arguments_are_the_callers_fault(harness: GatewayHarness) -> None:
    answer = await harness.call("every-thing__echo", b'{"value": "\\ud800"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_arguments")


async def test_later_tool_is_in_the_next_module(harness: GatewayHarness) -> None:
    before = await harness.get("/runtime/tools.ts")
    assert "grown1" not in before.text
    changed = asyncio.Event()
    harness.upstream.on_change.append(changed.set)
    await harness.call("every-thing__grow")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await changed.wait()
    after = await harness.get("/runtime/tools.ts")
    assert "grown1(args" in after.text
    assert after.headers["etag"] != before.headers["etag"]
    assert (await harness.call("every-thing__grown_1", {"value": "x"})).json() == "x"
