"""Hutch as the MCP door needs it: a real kernel, jail and compiler, over tools that do what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from mcp import Client
from mcp.types import CallToolResult
from starlette.applications import Starlette
from tests.doors.toolscript.scripted import Given, Server, Upstream, fails, gives
from tests.processes import PATIENCE

from hutch.app import App
from hutch.doors.gate import Gate
from hutch.doors.mcp.http import McpDoor
from hutch.doors.toolscript.approvals import Approvals, Policy
from hutch.doors.toolscript.gateway import Gateway
from hutch.doors.toolscript.here import Here
from hutch.doors.toolscript.http import application
from hutch.settings import Settings

IMPORT = 'import { tools } from "toolscript";\n'
# The two ways in which clients introduce themselves.
ERAS = ("legacy", "auto")

ISSUE = {
    "type": "object",
    "properties": {"title": {"type": "string", "description": "In a few words."}},
    "required": ["title"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = (
    Given("github", "create_issue", "Creates an issue in a repository.", ISSUE, NUMBER),
    Given("github", "list_issues", "Lists issues."),
    Given("github", "fail", "Fails."),
    Given("github", "wait", "Waits."),
    Given(
        "file-system",
        "read_file",
        "Reads a file.",
        {"type": "object", "properties": {"path": {"type": "string"}}},
    ),
)
SERVERS = (Server("github", "GitHub"), Server("file-system"), Server("slack", state="failed"))


class House:
    """What `hutch.app.App` is to the door, with tools of its own."""

    def __init__(
        self, app: App, rules: dict[str, str] | None = None, tools: tuple[Given, ...] = TOOLS, **changes: Any
    ) -> None:
        self.upstream = Upstream(*tools, servers=SERVERS)
        self.upstream.does.update(
            create_issue=gives({"number": 7}),
            list_issues=gives([{"number": 1, "title": "grüße"}]),
            fail=fails("tool_error", "no such repository"),
            wait=self.upstream.wait,
        )
        self.settings = Settings(home=app.settings.home, **changes)
        self.kernel = app.kernel
        self.scripts = app.scripts
        approvals = Approvals(Policy(rules), seconds=PATIENCE)
        approvals.on_wait_begin.append(app.kernel.hold)
        approvals.on_wait_end.append(app.kernel.go_on)
        self.gateway = Gateway(self.upstream, approvals)
        web = application(self.gateway, Gate(Settings()), Settings())
        self.world = Here(self.gateway, web, port=0, token=None)


async def run(client: Client, code: str, language: str = "toolscript", **more: Any) -> CallToolResult:
    hear = more.pop("hear", None)
    arguments = {"code": code, "language": language, **more}
    return await client.call_tool("run_code", arguments, progress_callback=hear)


async def ran(client: Client, code: str, language: str = "toolscript", **more: Any) -> dict[str, Any]:
    """The object that a program gets."""
    answer = await run(client, code, language, **more)
    found = answer.structured_content
    assert found is not None, text_of(answer)
    assert answer.is_error is not found["ok"]
    return found


def text_of(answer: CallToolResult) -> str:
    """What a model reads."""
    (block,) = answer.content
    assert block.type == "text"
    return block.text


@contextlib.asynccontextmanager
async def listening(
    house: House, *, pass_through: bool = False, **settings: Any
) -> AsyncIterator[tuple[str, Gate, McpDoor]]:
    """`/mcp` on a real port."""
    gate = Gate(Settings(**settings))
    door = McpDoor(house, gate, pass_through=pass_through)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = Starlette(routes=door.routes())
        config = uvicorn.Config(
            web, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", gate, door
        finally:
            house.upstream.go.set()
            await door.close()
            server.should_exit = True
            await serving
