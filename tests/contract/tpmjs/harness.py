"""A real `hutch serve` with an HTTP client, generated packages, and an HTTP server that synchronises tests
with tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
from tests.npm import registry
from tests.npm.registry import Registry
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, descendants, is_runner, running_server

# This number of concurrent executions keeps a machine with two cores busy.
MAX_CONCURRENCY = 4
_numbers = itertools.count(1)


class ToolModule(str):
    """Source of a module with the tool `tool`."""

    before: str
    body: str


def tool(body: str, before: str = "") -> ToolModule:
    """Builds a module with the tool `tool`. `body` is the body of `execute`, and `before` is code above the
    tool.
    """
    module = ToolModule(before + _export("tool", body))
    module.before, module.body = before, body
    return module


def _tool_name(number: int) -> str:
    return f"tool{number}"


def _export(name: str, body: str) -> str:
    return f"""
        export const {name} = {{
          description: "made up",
          inputSchema: {{ type: "object" }},
          execute: async (params, options) => {{ {body} }},
        }};
    """


class ToolServer:
    """A server process and an HTTP client for it, which sends protocol version 1.0 unless a test sends
    another version.
    """

    def __init__(self, server: ServeProcess, client: httpx2.AsyncClient, npm: Registry | None) -> None:
        self.server = server
        self.client = client
        self._npm = npm
        self.folders: tuple[Path, ...] = ()
        self._published: dict[str, str] = {}
        """Packages of `run_all` by their source."""

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def npm(self) -> Registry:
        assert self._npm is not None, "a server with the real registry"
        return self._npm

    def publish(self, source: str | dict[str, str], **manifest: Any) -> str:
        """Publishes a package with a new name, and returns the name."""
        name = f"made-up-{next(_numbers)}"
        self.npm.publish(name, files={"index.js": source} if isinstance(source, str) else source, **manifest)
        return name

    async def execute(
        self,
        package: str,
        name: str = "tool",
        params: dict[str, Any] | None = None,
        *,
        env: dict[str, str] | None = None,
        version: str | None = None,
        **headers: str,
    ) -> dict[str, Any]:
        response = await self.post("/execute-tool", body(package, name, params, env, version), **headers)
        assert response.status_code == 200, response.text
        data: dict[str, Any] = response.json()
        assert isinstance(data["executionTimeMs"], int)
        return data

    async def run(
        self, source: str | dict[str, str], *, type: str = "module", **options: Any
    ) -> dict[str, Any]:
        """Publishes a package and executes its tool."""
        return await self.execute(self.publish(source, type=type), **options)

    async def run_all(self, cases: Mapping[str, str | dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Runs many cases concurrently. A case is the source of a module, or the options of `run`. Returns
        the responses by the names of the cases.

        Installs as few packages as possible, because an installation takes longer than an execution: modules
        made by `tool` with the same `before` become tools of one package, and the same source is published
        only once. Each execution still has its own process.
        """
        slots = asyncio.Semaphore(MAX_CONCURRENCY)
        options = [{"source": case} if isinstance(case, str) else case for case in cases.values()]
        modules = [each["source"] for each in options if isinstance(each["source"], ToolModule)]

        async def run_one(
            source: str | dict[str, str], name: str = "tool", type: str = "module", **more: Any
        ) -> dict[str, Any]:
            if isinstance(source, ToolModule):
                bodies = dict.fromkeys(one.body for one in modules if one.before == source.before)
                name = _tool_name([*bodies].index(source.body))
                source = source.before + "".join(_export(_tool_name(n), it) for n, it in enumerate(bodies))
            async with slots:
                return await self.execute(self._publish_once(source, type), name, **more)

        answers = await asyncio.gather(*(run_one(**each) for each in options))
        return dict(zip(cases, answers, strict=True))

    def _publish_once(self, source: str | dict[str, str], type: str) -> str:
        key = json.dumps([source, type])
        if key not in self._published:
            self._published[key] = self.publish(source, type=type)
        return self._published[key]

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def stream(self, package: str, *arguments: Any, **options: Any) -> AsyncIterator[tuple[str, Any]]:
        """Yields the events of an execution as they arrive."""
        request = {"json": body(package, *arguments, **options), "headers": {"Accept": "text/event-stream"}}
        async with self.client.stream("POST", "/execute-tool", **request) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    async def healthy(self) -> bool:
        response = await self.client.get("/health", timeout=5)
        return response.status_code == 200 and response.json()["status"] == "ok"

    async def metric(self, line: str) -> float:
        """Returns the value of a line of /metrics, or 0 if the line is absent."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(text.rpartition(" ")[2]) for text in lines if text.rpartition(" ")[0] == line)


def body(
    package: str,
    name: str = "tool",
    params: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    fields = {"packageName": package, "name": name, "params": params, "env": env, "version": version}
    return {key: value for key, value in fields.items() if value is not None}


@contextlib.asynccontextmanager
async def start_server(
    npm: Registry | None = None, variables: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[ToolServer]:
    """Starts a server. If `npm` is given, the server uses only that registry."""
    environment = {f"HUTCH_{name.upper()}": str(value) for name, value in settings.items()}
    if npm is not None:
        environment |= no_registry_env() | {"NPM_CONFIG_REGISTRY": npm.url}
    environment |= variables or {}
    # Start and stop the server in another thread, so that this event loop can answer requests of the server
    # meanwhile.
    with contextlib.ExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, running_server(**environment))
        async with httpx2.AsyncClient(
            base_url=server.url,
            headers={"X-TPMJS-Protocol-Version": "1.0"},
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
        ) as client:
            yield ToolServer(server, client, npm)
        await asyncio.to_thread(stack.close)


def no_registry_env() -> dict[str, str]:
    """Returns environment variables that disable the tester's own registry configuration."""
    names = [name for name in os.environ if name.lower().startswith("npm_config_")]
    names += [name for name in os.environ if name.lower().endswith("_proxy") or "CERT" in name]
    return dict.fromkeys(names, "") | {"HOME": "/nonexistent"}


@contextlib.asynccontextmanager
async def server_with_registry(
    home: Path, variables: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[ToolServer]:
    """Starts a server that uses only packages published by tests."""
    with registry.run_registry() as npm:
        async with start_server(npm, variables, home=home, **settings) as running:
            yield running


def runners(pid: int) -> list[int]:
    """Returns the runners of a server that have loaded a package."""
    return [process for process in descendants(pid) if is_runner(process, "npm.js")]


async def eventually(condition: Callable[[], object]) -> None:
    """Polls for a condition that has no event, without blocking the event loop."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for _ in itertools.repeat(None):
            if condition():
                return
            await asyncio.sleep(0.005)


class SyncServer:
    """HTTP server that synchronises tests with tools. A tool requests `/ready/…` to report that it is ready,
    and `/wait/…` to wait until the test releases it. `/redirect/…` redirects to a port.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests = 0
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def wait_ready(self, name: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._events[name].wait()

    def release(self, name: str) -> None:
        self._events[name].set()

    @property
    def address(self) -> str:
        """Host and port of this server, for egress rules."""
        return self.url.removeprefix("http://")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # uvloop raises RuntimeError if the client has closed the connection.
        gone = ConnectionError, asyncio.IncompleteReadError, RuntimeError
        with contextlib.closing(writer), contextlib.suppress(*gone):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            _, action, name = head.split(" ")[1].split("/")
            self.requests += 1
            if action != "wait":
                self._events[name].set()
            await self._events[name].wait()
            status = "200 OK"
            if action == "redirect":
                status = f"302 Found\r\nLocation: http://127.0.0.1:{name}/"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
            await writer.drain()


@contextlib.asynccontextmanager
async def sync_server() -> AsyncIterator[SyncServer]:
    sync = SyncServer()
    server = await asyncio.start_server(sync._serve, "127.0.0.1", 0)
    sync.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield sync
    finally:
        for event in sync._events.values():
            event.set()
        server.close()
