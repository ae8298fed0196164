"""A gateway with fake tools, in this process or on a real port, and a real Deno."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import deno
import httpx2
from tests.http.server.asgi_server import serve_app as on_port
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import UpstreamError
from hutch.http.auth import AccessControl
from hutch.mcp_client.tools import McpToolResult
from hutch.protocols.toolscript.gateway.approvals import ApprovalPolicy, Approvals
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.protocols.toolscript.gateway.local import LocalGateway
from hutch.protocols.toolscript.gateway.routes import application
from hutch.protocols.toolscript.jail_server.listener import JailListener
from hutch.settings import Settings


class FakeTool(NamedTuple):
    """The description of a tool that a fake server lists."""

    server: str
    name: str
    description: Any = None
    input_schema: Any = None
    output_schema: Any = None
    reads_resources: bool = False
    annotations: Any = None


class FakeServer(NamedTuple):
    name: str
    title: str | None = None
    instructions: str | None = None
    state: str = "connected"
    error: str | None = None
    warnings: tuple[str, ...] = ()
    was_tried: bool = False


ToolFunction = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


class FakeToolSource:
    """Fake MCP servers with tools. A tool returns its own name and arguments, unless a test replaces it."""

    def __init__(self, *tools: FakeTool, servers: tuple[FakeServer, ...] = ()) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.revision = "r1"
        self.tool_list = list(tools)
        self.server_list = servers
        self.list_count = 0
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.released = asyncio.Event()
        self.functions: dict[str, ToolFunction] = {}

    def servers(self) -> list[FakeServer]:
        return [*self.server_list] or [
            FakeServer(name) for name in dict.fromkeys(each.server for each in self.tool_list)
        ]

    async def tools(self) -> list[FakeTool]:
        self.list_count += 1
        return self.tool_list

    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Any = None,
        whole: bool = False,
        on_input: Any = None,
    ) -> Any:
        self.calls.append((server, tool, arguments))
        self.called.set()
        value: Any = {"server": server, "tool": tool, "arguments": arguments}
        try:
            if tool in self.functions:
                value = await self.functions[tool](server, tool, arguments)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(value, McpToolResult):
            return value if whole else value.value
        return whole_result(value) if whole else value

    async def wait(self, *_: Any) -> str:
        await self.released.wait()
        return "went"

    def change(self, *tools: FakeTool) -> None:
        self.tool_list = list(tools)
        self.revision += "+"
        for callback in self.on_change:
            callback()


def whole_result(value: Any) -> McpToolResult:
    """Returns an MCP result. If the value consists of content blocks, the result has these blocks, otherwise
    one text block.
    """
    if isinstance(value, list) and all(isinstance(block, dict) and len(block) > 1 for block in value):
        return McpToolResult(value, value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return McpToolResult(value, [] if value is None else [{"type": "text", "text": text}])


def failing(kind: str, message: str = "it broke", details: Any = None) -> ToolFunction:
    async def fail(server: str, tool: str, _: dict[str, Any]) -> Any:
        raise UpstreamError(server, tool, message, kind=kind, details=details)

    return fail


def returning(value: Any) -> ToolFunction:
    async def give(*_: Any) -> Any:
        return value

    return give


class GatewayHarness:
    """A gateway without the rest of a server, as `hutch gateway start` runs it."""

    def __init__(
        self,
        upstream: FakeToolSource,
        rules: dict[str, str] | None = None,
        seconds: float = TIMEOUT_SECONDS,
        **settings: Any,
    ) -> None:
        self.upstream = upstream
        self.settings = Settings(**settings)
        self.access = AccessControl(self.settings)
        self.gateway = Gateway(upstream, Approvals(ApprovalPolicy(rules), seconds=seconds))
        self.app = application(self.gateway, self.access, self.settings)
        self.client = self.connect()

    def connect(self, **headers: str) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(
            transport=transport, timeout=TIMEOUT_SECONDS, base_url="http://127.0.0.1", headers=headers
        )

    @contextlib.asynccontextmanager
    async def connect_from_jail(self, run_id: str) -> AsyncIterator[httpx2.AsyncClient]:
        """Yields a client that reaches the gateway through a jail's listener, as a script in this process's
        jails does.
        """
        max_body_bytes = self.settings.max_body_bytes
        socket_ = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{socket_.getsockname()[1]}"
        jail = JailListener(socket_, LocalGateway(self.gateway, port=0, max_body_bytes=max_body_bytes))
        jail.run_id = run_id
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, base_url=url) as client:
                yield client
        finally:
            jail.close()

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers)

    async def call(self, name: str, body: Any = None, **headers: str) -> httpx2.Response:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return await self.client.post(f"/tools/{name}", content=raw, headers=headers)

    async def decide(self, id: str, **body: Any) -> httpx2.Response:
        return await self.client.post(f"/approvals/{id}", json=body)

    async def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """Waits until `count` calls wait for an approval."""
        with self.gateway.approvals.listen() as queue:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while len(self.gateway.approvals.pending()) < count:
                    await queue.get()
        found: list[dict[str, Any]] = (await self.get("/approvals")).json()
        return found


@contextlib.asynccontextmanager
async def listening(harness: GatewayHarness) -> AsyncIterator[str]:
    """Serves the gateway on a real port. Yields its URL."""
    async with on_port(harness.app, harness.upstream.released) as host:
        yield f"http://{host}"


@contextlib.asynccontextmanager
async def events(url: str) -> AsyncIterator[Callable[[], Awaitable[tuple[str, Any]]]]:
    """Yields a function that returns the next approval event."""
    client = httpx2.AsyncClient(timeout=TIMEOUT_SECONDS)
    async with client, client.stream("GET", f"{url}/approvals/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()

        async def event() -> tuple[str, Any]:
            while not (line := await anext(lines)).startswith("event: "):
                pass
            data = await anext(lines)
            return line.removeprefix("event: "), json.loads(data.removeprefix("data: "))

        yield event


class DenoResult(NamedTuple):
    code: int
    out: str
    err: str


class Deno:
    """Runs and checks TypeScript with a real Deno, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return file

    async def check(self, *files: Path) -> DenoResult:
        return await self._deno("check", "--no-lock", "--no-config", *map(str, files))

    async def run(self, url: str, script: str, *, check: bool = False) -> DenoResult:
        """Runs a script with an import map and permissions, as the specification of Toolscript shows."""
        found = self.write(
            "import-map.json", json.dumps({"imports": {"toolscript": f"{url}/runtime/tools.ts?_t=1"}})
        )
        where = url.removeprefix("http://")
        return await self._deno(
            "run",
            "--check" if check else "--no-check",
            "--no-lock",
            "--no-config",
            "--no-prompt",
            "--reload",
            f"--import-map={found}",
            f"--allow-net={where}",
            f"--allow-import={where}",
            "--allow-env=TOOLSCRIPT_GATEWAY_URL",
            str(self.write("script.ts", script)),
            TOOLSCRIPT_GATEWAY_URL=url,
        )

    async def _deno(self, *arguments: str, **variables: str) -> DenoResult:
        process = await asyncio.create_subprocess_exec(
            deno.find_deno_bin(),
            *arguments,
            env={
                "DENO_DIR": str(self.folder / "deno"),
                "NO_COLOR": "1",
                "DENO_NO_UPDATE_CHECK": "1",
                "PATH": os.environ["PATH"],
                **variables,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, err = await process.communicate()
        return DenoResult(process.returncode or 0, out.decode(), err.decode())
