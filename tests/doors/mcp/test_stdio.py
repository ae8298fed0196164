"""`hutch mcp` as a client starts it: a real process, a real client, a real server behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ToolListChangedNotification
from tests.doors.mcp.houses import ERAS, IMPORT, ran, text_of
from tests.doors.mcp.watching import Scripts
from tests.forked import lent
from tests.mcp_servers import everything
from tests.processes import HUTCH, PATIENCE, Traces, hutch, serving, started, until

MCP = ("mcp", "--pass-through")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a configuration, as a project has."""
    folder = tmp_path_factory.mktemp("project")
    server = {"command": sys.executable, "args": lent(Path(everything.__file__))}
    broken = {"command": "no-such-program"}
    config = {"mcpServers": {"everything": server, "broken": broken}}
    (folder / ".toolscript.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def parameters(folder: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=[*HUTCH[1:], *MCP], cwd=folder, env={**os.environ, "HOME": str(folder)}
    )


@pytest.mark.parametrize("era", ERAS)
async def test_any_client_has_code_mode_with_one_entry(parameters: StdioServerParameters, era: str) -> None:
    changed = asyncio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with Client(parameters, mode=era, message_handler=hear) as client:
        assert "- tools.everything: Everything (" in (client.instructions or "")
        assert "- broken (not connected)" in (client.instructions or "")
        found = await client.call_tool("search_tools", {"query": "adds numbers", "limit": 1})
        assert "tools.everything.add(" in text_of(found)
        code = f"""{IMPORT}
            const {{ sum }} = await tools.everything.add({{ a: 40, b: 2 }});
            console.log("hello");
            return {{ sum, image: await tools.everything.image() }};"""
        result = await ran(client, code)
        assert result["result"]["sum"] == 42
        assert result["result"]["image"][0]["type"] == "image"
        assert result["stdout"] == "hello\n"
        wrong = await ran(client, code.replace("b: 2", "b: '2'"))
        assert wrong["error"]["code"] == "invalid_script"
        javascript = await ran(client, "return (await everything.add({ a: 1, b: 2 })).sum", "javascript")
        assert javascript["result"] == 3
        image = await client.call_tool("everything__image", {})
        assert image.content[0].type == "image"
        if era == "legacy":
            await ran(client, f"{IMPORT}return await tools.everything.grow();")
            async with asyncio.timeout(PATIENCE):
                await changed.wait()
            assert "everything__grown_1" in [each.name for each in (await client.list_tools()).tools]


class Started:
    """One that is spoken with by hand."""

    def __init__(self, folder: Path) -> None:
        self.process = started(MCP, cwd=folder, env={"HOME": str(folder)})
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        self.say({"id": 0, "method": "initialize", "params": params})
        assert self.hear()["result"]["serverInfo"]["name"] == "hutch"
        self.say({"method": "notifications/initialized"})

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard

    def run(self, code: str, id: int = 1, **params: Any) -> None:
        params |= {"name": "run_code", "arguments": {"code": code}}
        self.say({"id": id, "method": "tools/call", "params": params})

    def run_slowly(self, id: int = 1) -> None:
        """Returns when a script waits for its tool."""
        code = f"""{IMPORT}
            await tools.everything.echo({{ value: 1 }});
            await tools.everything.slow({{ seconds: 600 }});"""
        self.run(code, id, _meta={"progressToken": "slow"})
        while "echo of everything" not in self.hear()["params"]["message"]:
            pass

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()


def test_a_call_that_is_cancelled_ends_its_process_and_nonsense_is_passed_over(folder: Path) -> None:
    with Started(folder) as started:
        started.run_slowly(id=1)
        with Scripts(started.process.pid) as scripts:
            started.say({"method": "notifications/cancelled", "params": {"requestId": 1}})
            until(scripts.one_ended)
        assert started.process.stdin is not None
        started.process.stdin.write(b'nonsense\n\n{"jsonrpc": "1.0"}\n\xff\xfe\n')
        started.run("return '" + "x" * 200_000 + "'.length", id=2)
        answer = started.hear()
        assert answer["id"] == 2
        assert answer["result"]["structuredContent"]["result"] == 200_000


@pytest.mark.parametrize("way", ["end of input", "SIGTERM"])
def test_nothing_is_left_when_the_client_goes_while_code_runs(folder: Path, way: str) -> None:
    with Started(folder) as started:
        started.run_slowly()
        with Traces(started.process.pid) as traces:
            assert traces.processes >= 3
            if way == "end of input":
                assert started.process.stdin is not None
                started.process.stdin.close()
            else:
                started.process.send_signal(getattr(signal, way))
            assert started.process.wait(PATIENCE) == 0
            assert traces.remaining() == []
        assert started.process.stderr is not None
        assert b"Traceback" not in started.process.stderr.read()


def test_a_broken_configuration_is_told_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / ".toolscript.json").write_text('{"mcpServers": {"a": {}}}')
    done = hutch("mcp", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert done.returncode == 2
    assert ".toolscript.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_server_offers_the_same_and_lets_nobody_who_listens_keep_it_from_ending(folder: Path) -> None:
    """In a process of its own, as `hutch serve` has it."""
    config = str(folder / ".toolscript.json")
    with serving(HUTCH_MCP_CONFIG=config, HUTCH_MCP_PASS_THROUGH="true", HUTCH_API_KEY="key") as server:

        async def visit() -> None:
            http = httpx2.AsyncClient(headers={"Authorization": "Bearer key"}, timeout=PATIENCE)
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with http, Client(transport) as client, client.listen(tools_list_changed=True) as events:
                found = await ran(client, f"{IMPORT}return await tools.everything.add({{ a: 1, b: 2 }});")
                assert found["result"] == {"sum": 3}
                server.process.terminate()
                assert [each async for each in events] == []

        anyio.run(visit)
        assert server.wait() == 0


def test_the_door_needs_no_sdk_until_somebody_comes() -> None:
    code = "import hutch.doors.mcp.http, hutch.cli.mcp, sys; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
