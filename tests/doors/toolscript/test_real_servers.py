"""The gateway over a real MCP server, asked by a real Deno."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.doors.toolscript.scripted import Deno, Door, listening
from tests.forked import lent
from tests.mcp_servers import everything
from tests.processes import PATIENCE

from hutch.settings import Settings
from hutch.upstream.entries import Config, Program, ServerConfig
from hutch.upstream.servers import Upstreams


class Connected(Upstreams):
    """With what the scripted ones have besides."""

    go = asyncio.Event()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    here = Program(command=sys.executable, args=tuple(lent(Path(everything.__file__))))
    gone = Program(command="no-such-program")
    servers = [ServerConfig(name="every-thing", reach=here), ServerConfig(name="gone", reach=gone)]
    async with Connected(Config({each.name: each for each in servers}), Settings()) as upstreams:
        await upstreams.start()
        yield Door(upstreams)  # type: ignore[arg-type]


SCRIPT = """
import { ToolError, tools } from "toolscript";
const all = tools.everyThing;
const failed = (error: ToolError) => [error.name, error.server, error.tool, error.message, error.details];
const sum: number = (await all.add({ a: 1, b: 2 })).sum;
console.log(JSON.stringify([
  sum,
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


async def test_a_script_calls_the_tools_of_a_real_server(door: Door, tmp_path: Path) -> None:
    async with listening(door) as url:
        done = await Deno(tmp_path).run(url, SCRIPT, check=True)
    assert done.code == 0, done.err
    total, zero, failed, rejected, given, *named = json.loads(done.out)
    assert (total, zero) == (3, "0")
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


async def test_a_server_that_cannot_be_started_is_told_and_the_other_serves(door: Door) -> None:
    status = (await door.get("/status")).json()
    assert [(each["name"], each["state"]) for each in status["servers"]] == [
        ("every-thing", "connected"),
        ("gone", "failed"),
    ]
    assert "no-such-program" in status["servers"][1]["error"]
    assert status["collisions"][0]["became"] == {"get_user": "getUser", "get-user": "getUser_2"}
    assert (await door.call("gone__anything")).status_code == 502
    assert (await door.call("every-thing__echo", {"value": {"a": 1}})).json() == {"a": 1}
    found = (await door.get("/search?q=ad+two+numbrs")).json()
    assert found[0]["tool"]["qualifiedName"] == "every-thing__add"


async def test_arguments_that_no_server_could_read_are_the_callers_fault(door: Door) -> None:
    answer = await door.call("every-thing__echo", b'{"value": "\\ud800"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_arguments")


async def test_a_tool_that_comes_later_is_in_the_next_module(door: Door) -> None:
    before = await door.get("/runtime/tools.ts")
    assert "grown1" not in before.text
    changed = asyncio.Event()
    door.upstream.on_change.append(changed.set)
    await door.call("every-thing__grow")
    async with asyncio.timeout(PATIENCE):
        await changed.wait()
    after = await door.get("/runtime/tools.ts")
    assert "grown1(args" in after.text
    assert after.headers["etag"] != before.headers["etag"]
    assert (await door.call("every-thing__grown_1", {"value": "x"})).json() == "x"
