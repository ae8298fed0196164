"""A gateway over tools that do what a test wants, here or on a real port, and a real Deno to ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import deno
import httpx2
from tests.doors.listening import listening as on_port
from tests.processes import PATIENCE

from hutch.doors.gate import Gate
from hutch.doors.toolscript.approvals import Approvals, Policy
from hutch.doors.toolscript.gateway import Gateway
from hutch.doors.toolscript.http import application
from hutch.errors import UpstreamError
from hutch.settings import Settings


class Given(NamedTuple):
    """A tool, as a server describes it."""

    server: str
    name: str
    description: Any = None
    input_schema: Any = None
    output_schema: Any = None


class Server(NamedTuple):
    name: str
    title: str | None = None
    instructions: str | None = None
    state: str = "connected"
    error: str | None = None
    warnings: tuple[str, ...] = ()


Does = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


class Upstream:
    """Servers whose tools all do the same: tell who was called with what, unless a test says otherwise."""

    def __init__(self, *tools: Given, servers: tuple[Server, ...] = ()) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.revision = "r1"
        self.given = list(tools)
        self.described = servers
        self.listed = 0
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()
        self.does: dict[str, Does] = {}

    def servers(self) -> list[Server]:
        return [*self.described] or [
            Server(name) for name in dict.fromkeys(each.server for each in self.given)
        ]

    async def tools(self) -> list[Given]:
        self.listed += 1
        return self.given

    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Any = None,
    ) -> Any:
        self.calls.append((server, tool, arguments))
        self.called.set()
        try:
            if tool in self.does:
                return await self.does[tool](server, tool, arguments)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"server": server, "tool": tool, "arguments": arguments}

    async def wait(self, *_: Any) -> str:
        await self.go.wait()
        return "went"

    def change(self, *tools: Given) -> None:
        self.given = list(tools)
        self.revision += "+"
        for told in self.on_change:
            told()


def fails(kind: str, message: str = "it broke", details: Any = None) -> Does:
    async def fail(server: str, tool: str, _: dict[str, Any]) -> Any:
        raise UpstreamError(server, tool, message, kind=kind, details=details)

    return fail


def gives(value: Any) -> Does:
    async def give(*_: Any) -> Any:
        return value

    return give


class Door:
    """The gateway alone, as `hutch gateway start` has it."""

    def __init__(
        self,
        upstream: Upstream,
        rules: dict[str, str] | None = None,
        seconds: float = PATIENCE,
        **settings: Any,
    ) -> None:
        self.upstream = upstream
        self.settings = Settings(**settings)
        self.gate = Gate(self.settings)
        self.gateway = Gateway(upstream, Approvals(Policy(rules), seconds=seconds))
        self.app = application(self.gateway, self.gate, self.settings)
        self.client = self.connect()

    def connect(self, **scope: Any) -> httpx2.AsyncClient:
        """Requests by HTTP or, with something in the scope, such as only this process can make."""

        async def app(given: Any, receive: Any, send: Any) -> None:
            await self.app({**given, **scope}, receive, send)

        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, timeout=PATIENCE, base_url="http://127.0.0.1")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers)

    async def call(self, name: str, body: Any = None, **headers: str) -> httpx2.Response:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return await self.client.post(f"/tools/{name}", content=raw, headers=headers)

    async def decide(self, id: str, **body: Any) -> httpx2.Response:
        return await self.client.post(f"/approvals/{id}", json=body)

    async def asked(self, count: int = 1) -> list[dict[str, Any]]:
        """Waits until so many calls wait for an approval."""
        with self.gateway.approvals.listen() as queue:
            async with asyncio.timeout(PATIENCE):
                while len(self.gateway.approvals.pending()) < count:
                    await queue.get()
        found: list[dict[str, Any]] = (await self.get("/approvals")).json()
        return found


@contextlib.asynccontextmanager
async def listening(door: Door) -> AsyncIterator[str]:
    """The door on a real port; its URL."""
    async with on_port(door.app, door.upstream.go) as host:
        yield f"http://{host}"


@contextlib.asynccontextmanager
async def events(url: str) -> AsyncIterator[Callable[[], Awaitable[tuple[str, Any]]]]:
    """What a gateway tells of approvals, one event after the other."""
    client = httpx2.AsyncClient(timeout=PATIENCE)
    async with client, client.stream("GET", f"{url}/approvals/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()

        async def event() -> tuple[str, Any]:
            while not (line := await anext(lines)).startswith("event: "):
                pass
            data = await anext(lines)
            return line.removeprefix("event: "), json.loads(data.removeprefix("data: "))

        yield event


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Deno:
    """A real Deno with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return file

    async def check(self, *files: Path) -> Ran:
        return await self._deno("check", "--no-lock", "--no-config", *map(str, files))

    async def run(self, url: str, script: str, *, check: bool = False) -> Ran:
        """A script, as the specification has it run."""
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

    async def _deno(self, *arguments: str, **variables: str) -> Ran:
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
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())
