"""Provides the services that the MCP server needs: a real kernel, jail and compiler, but fake tools."""

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
from tests.protocols.toolscript.fakes import FakeServer, FakeTool, FakeToolSource, failing, returning
from tests.support.processes import TIMEOUT_SECONDS

from hutch.app.app import App
from hutch.http.auth import AccessControl, KeyAuthenticator
from hutch.protocols.mcp.http import McpEndpoint
from hutch.protocols.toolscript.gateway.approvals import ApprovalPolicy, Approvals
from hutch.protocols.toolscript.gateway.gateway import Gateway, ToolSource
from hutch.protocols.toolscript.gateway.local import LocalGateway
from hutch.settings import Settings

IMPORT = 'import { tools } from "toolscript";\n'
# The two handshakes of MCP clients.
ERAS = ("legacy", "auto")

ISSUE = {
    "type": "object",
    "properties": {"title": {"type": "string", "description": "In a few words."}},
    "required": ["title"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = (
    FakeTool("github", "create_issue", "Creates an issue in a repository.", ISSUE, NUMBER),
    FakeTool("github", "list_issues", "Lists issues."),
    FakeTool("github", "fail", "Fails."),
    FakeTool("github", "wait", "Waits."),
    FakeTool(
        "file-system",
        "read_file",
        "Reads a file.",
        {"type": "object", "properties": {"path": {"type": "string"}}},
    ),
)
RESOURCE_READER = FakeTool("file-system", "read_resource", "Reads.", {"type": "object"}, None, True)
SERVERS = (FakeServer("github", "GitHub"), FakeServer("file-system"), FakeServer("slack", state="failed"))


class McpHarness:
    """Replaces `hutch.app.app.App`, so that the MCP server has fake tools."""

    tracer = None
    durable_scripts = None

    def __init__(
        self,
        app: App,
        rules: dict[str, str] | None = None,
        tools: tuple[FakeTool, ...] = TOOLS,
        **changes: Any,
    ) -> None:
        self.upstream = FakeToolSource(*tools, servers=SERVERS)
        self.upstream.functions.update(
            create_issue=returning({"number": 7}),
            list_issues=returning([{"number": 1, "title": "grüße"}]),
            fail=failing("tool_error", "no such repository"),
            wait=self.upstream.wait,
        )
        self.settings = Settings(home=app.settings.home, **changes)
        self.kernel = app.kernel
        self.scripts = app.scripts
        self.suspended_runs = app.suspended_runs
        self.sessions = app.sessions
        self.values = app.values
        self.storage = app.storage
        self._approvals = Approvals(ApprovalPolicy(rules), seconds=TIMEOUT_SECONDS)
        self._approvals.on_wait_begin.append(app.kernel.pause_timeout)
        self._approvals.on_wait_end.append(app.kernel.resume_timeout)
        self.use_servers(self.upstream)

    def use_servers(self, servers: ToolSource) -> None:
        self.gateway = Gateway(servers, self._approvals)
        self.script_gateway = LocalGateway(self.gateway, port=0, max_body_bytes=self.settings.max_body_bytes)


async def run(client: Client, code: str, language: str = "toolscript", **more: Any) -> CallToolResult:
    on_progress = more.pop("on_progress", None)
    arguments = {"code": code, "language": language, **more}
    return await client.call_tool("run_code", arguments, progress_callback=on_progress)


async def run_structured(
    client: Client, code: str, language: str = "toolscript", **more: Any
) -> dict[str, Any]:
    """Returns the structured result."""
    answer = await run(client, code, language, format="json", **more)
    found = answer.structured_content
    assert found is not None, text_of(answer)
    assert answer.is_error is not found["ok"]
    return found


def text_of(answer: CallToolResult) -> str:
    """Returns the text result."""
    (block,) = answer.content
    assert block.type == "text"
    return block.text


@contextlib.asynccontextmanager
async def listening(
    harness: McpHarness, *, pass_through: bool = False, keys: KeyAuthenticator | None = None, **settings: Any
) -> AsyncIterator[tuple[str, AccessControl, McpEndpoint]]:
    """Serves `/mcp` of a harness on a real port. Yields the URL, the access control and the endpoint."""
    access = AccessControl(Settings(**settings), keys)
    mcp_server = McpEndpoint(harness, access, pass_through=pass_through)
    async with serving(mcp_server) as url:
        try:
            yield url, access, mcp_server
        finally:
            harness.upstream.released.set()


@contextlib.asynccontextmanager
async def serving(mcp_server: McpEndpoint) -> AsyncIterator[str]:
    """Serves an endpoint on a real port. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = Starlette(routes=mcp_server.routes())
        config = uvicorn.Config(
            web, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            await mcp_server.close()
            server.should_exit = True
            await serving
