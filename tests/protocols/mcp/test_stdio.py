"""`hutch mcp` as a real process with a real client and a real MCP server."""

from __future__ import annotations

import asyncio
import json
import os
import re
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
from mcp.types import ElicitResult, InputRequiredResult, ToolListChangedNotification
from tests.protocols.mcp.harness import ERAS, IMPORT, run_structured, text_of
from tests.protocols.mcp.observers import ScriptProcesses
from tests.support.forked import forked_script
from tests.support.mcp_servers import everything
from tests.support.processes import (
    HUTCH,
    TIMEOUT_SECONDS,
    Traces,
    arguments_of,
    children,
    copy_selftest,
    hutch,
    running_server,
    start_hutch,
    wait_until,
)

MCP = ("mcp", "--pass-through")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with a configuration."""
    folder = tmp_path_factory.mktemp("project")
    server = {"command": sys.executable, "args": forked_script(Path(everything.__file__))}
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
async def test_client_has_code_mode_with_one_entry(parameters: StdioServerParameters, era: str) -> None:
    changed = asyncio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with Client(parameters, mode=era, message_handler=on_message) as client:
        # On a busy machine, the server may still be connecting when the instructions are sent.
        connected = r"- (tools\.everything: Everything \(\d|everything \(connecting\))"
        assert re.search(connected, client.instructions or "")
        assert "- broken (not connected)" in (client.instructions or "")
        found = await client.call_tool("search_tools", {"query": "adds numbers", "limit": 1})
        assert "tools.everything.add(" in text_of(found)
        code = f"""{IMPORT}
            const {{ sum }} = await tools.everything.add({{ a: 40, b: 2 }});
            console.log("hello");
            return {{ sum, image: await tools.everything.image() }};"""
        result = await run_structured(client, code)
        assert result["result"]["sum"] == 42
        assert result["result"]["image"][0]["type"] == "image"
        assert result["stdout"] == "hello\n"
        wrong = await run_structured(client, code.replace("b: 2", "b: '2'"))
        assert wrong["error"]["code"] == "invalid_script"
        javascript = await run_structured(
            client, "return (await tools.everything.add({ a: 1, b: 2 })).sum", "javascript"
        )
        assert javascript["result"] == 3
        image = await client.call_tool("everything__image", {})
        assert image.content[0].type == "image"
        if era == "legacy":
            await run_structured(client, f"{IMPORT}return await tools.everything.grow();")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await changed.wait()
            assert "everything__grown_1" in [each.name for each in (await client.list_tools()).tools]


async def test_answer_continues_a_run_of_a_killed_process(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hutch.toml").write_text('[approvals]\neverything__add = "ask"\n')
    copy_selftest(tmp_path)
    env = {**os.environ, "HOME": str(folder), "HUTCH_HOME": str(tmp_path)}
    parameters = StdioServerParameters(command=sys.executable, args=[*HUTCH[1:], "mcp"], cwd=folder, env=env)
    code = "return (await tools.everything.add({ a: 40, b: 2 })).sum"
    arguments = {"code": code, "language": "javascript"}

    async def never(*_: object) -> ElicitResult:
        raise AssertionError("the test answers itself")

    known = children(os.getpid())
    async with Client(parameters, elicitation_callback=never) as client:
        asked = await client.session.call_tool("run_code", arguments, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        (pid,) = [pid for pid in children(os.getpid()) if pid not in known and "mcp" in arguments_of(pid)]
        os.kill(pid, signal.SIGKILL)
    async with Client(parameters, elicitation_callback=never) as client:
        answer = await client.session.call_tool(
            "run_code",
            arguments,
            request_state=asked.request_state,
            input_responses=dict.fromkeys(asked.input_requests or {}, ElicitResult(action="accept")),
        )
        assert text_of(answer) == "42\n\n(1 tool call)"


class McpProcess:
    """A `hutch mcp` process with a hand-written client."""

    def __init__(self, folder: Path) -> None:
        self.process = start_hutch(MCP, cwd=folder, env={"HOME": str(folder)})
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        self.send({"id": 0, "method": "initialize", "params": params})
        assert self.receive()["result"]["serverInfo"]["name"] == "hutch"
        self.send({"method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        received: dict[str, Any] = json.loads(self.process.stdout.readline())
        return received

    def run(self, code: str, id: int = 1, **params: Any) -> None:
        params |= {"name": "run_code", "arguments": {"code": code}}
        self.send({"id": id, "method": "tools/call", "params": params})

    def run_slowly(self, id: int = 1) -> None:
        """Starts a script, and returns when the script waits for its tool."""
        code = f"""{IMPORT}
            await tools.everything.echo({{ value: 1 }});
            await tools.everything.slow({{ seconds: 600 }});"""
        self.run(code, id, _meta={"progressToken": "slow"})
        while "echo of everything" not in self.receive()["params"]["message"]:
            pass

    def __enter__(self) -> McpProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()


def test_cancelled_call_ends_its_process_and_invalid_lines_are_ignored(folder: Path) -> None:
    with McpProcess(folder) as mcp:
        mcp.run_slowly(id=1)
        with ScriptProcesses(mcp.process.pid) as scripts:
            mcp.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
            wait_until(scripts.one_ended)
        assert mcp.process.stdin is not None
        mcp.process.stdin.write(b'garbage\n\n{"jsonrpc": "1.0"}\n\xff\xfe\n')
        mcp.run("return '" + "x" * 200_000 + "'.length", id=2)
        answer = mcp.receive()
        assert answer["id"] == 2
        assert answer["result"]["content"][0]["text"] == "200000"


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_no_process_is_left_when_the_client_disconnects(folder: Path, how: str) -> None:
    with McpProcess(folder) as mcp:
        mcp.run_slowly()
        with Traces(mcp.process.pid) as traces:
            assert traces.processes >= 3
            if how == "end of input":
                assert mcp.process.stdin is not None
                mcp.process.stdin.close()
            else:
                mcp.process.send_signal(getattr(signal, how))
            assert mcp.process.wait(TIMEOUT_SECONDS) == 0
            assert traces.remaining() == []
        assert mcp.process.stderr is not None
        assert b"Traceback" not in mcp.process.stderr.read()


def test_invalid_configuration_is_reported_first(tmp_path: Path) -> None:
    (tmp_path / ".toolscript.json").write_text('{"mcpServers": {"a": {}}}')
    done = hutch("mcp", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert done.returncode == 2
    assert ".toolscript.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_hutch_serve_offers_the_same_and_ends_despite_open_streams(folder: Path) -> None:
    """`hutch serve` runs in its own process and offers the tools over HTTP."""
    config = str(folder / ".toolscript.json")
    with running_server(
        HUTCH_MCP_CONFIG=config, HUTCH_MCP_PASS_THROUGH="true", HUTCH_API_KEY="key"
    ) as server:

        async def use() -> None:
            http = httpx2.AsyncClient(headers={"Authorization": "Bearer key"}, timeout=TIMEOUT_SECONDS)
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with http, Client(transport) as client, client.listen(tools_list_changed=True) as events:
                found = await run_structured(
                    client, f"{IMPORT}return await tools.everything.add({{ a: 1, b: 2 }});"
                )
                assert found["result"] == {"sum": 3}
                server.process.terminate()
                assert [each async for each in events] == []

        anyio.run(use)
        assert server.wait() == 0


def test_sdk_is_not_imported_before_the_first_client() -> None:
    code = "import hutch.protocols.mcp.http, hutch.cli.mcp, sys; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
