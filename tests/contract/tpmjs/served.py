"""A real `hutch serve` spoken with over HTTP, packages that tests make up, and a place to meet tools."""

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
from tests.processes import PATIENCE, Server, descendants, runs, serving

# A machine with two cores is kept busy by these.
AT_ONCE = 4
_numbers = itertools.count(1)


def tool(body: str, before: str = "") -> str:
    """A module with the tool `tool`, whose `execute` has this body."""
    return f"""{before}
        export const tool = {{
          description: "made up",
          inputSchema: {{ type: "object" }},
          execute: async (params, options) => {{ {body} }},
        }};
    """


class Executor:
    """The server, as its clients know it."""

    def __init__(self, server: Server, client: httpx2.AsyncClient, npm: Registry | None) -> None:
        self.server = server
        self.client = client
        self._npm = npm
        self.folders: tuple[Path, ...] = ()

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def npm(self) -> Registry:
        assert self._npm is not None, "a server with the real registry"
        return self._npm

    def publish(self, source: str | dict[str, str], **manifest: Any) -> str:
        """A package with a name of its own, which is told."""
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
        answer = await self.post("/execute-tool", body(package, name, params, env, version), **headers)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        assert isinstance(told["executionTimeMs"], int)
        return told

    async def run(
        self, source: str | dict[str, str], *, type: str = "module", **options: Any
    ) -> dict[str, Any]:
        """Publishes a package and executes its tool."""
        return await self.execute(self.publish(source, type=type), **options)

    async def run_all(self, cases: Mapping[str, str | dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Does so for many at once: each is a source, or the options of `run`. The answers by their names."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def in_turn(case: str | dict[str, Any]) -> dict[str, Any]:
            async with turns:
                return await self.run(**({"source": case} if isinstance(case, str) else case))

        return dict(zip(cases, await asyncio.gather(*map(in_turn, cases.values())), strict=True))

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def stream(self, package: str, *arguments: Any, **options: Any) -> AsyncIterator[tuple[str, Any]]:
        """The events of an execution, as they come."""
        request = {"json": body(package, *arguments, **options), "headers": {"Accept": "text/event-stream"}}
        async with self.client.stream("POST", "/execute-tool", **request) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            name = ""
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    async def healthy(self) -> bool:
        answer = await self.client.get("/health", timeout=5)
        return answer.status_code == 200 and answer.json()["status"] == "ok"

    async def metric(self, line: str) -> float:
        """A number by what stands before it on its line of /metrics; 0 when it is not there."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(each.rpartition(" ")[2]) for each in lines if each.rpartition(" ")[0] == line)


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
async def executor(
    npm: Registry | None = None, variables: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[Executor]:
    """A server; with a registry, one that has no other."""
    environment = {f"HUTCH_{name.upper()}": str(value) for name, value in settings.items()}
    if npm is not None:
        environment |= elsewhere() | {"NPM_CONFIG_REGISTRY": npm.url}
    environment |= variables or {}
    # Starting and ending one is for a thread: who shares our loop may be needed for it.
    with contextlib.ExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, serving(**environment))
        async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
            yield Executor(server, client, npm)
        await asyncio.to_thread(stack.close)


def elsewhere() -> dict[str, str]:
    """Variables that make nothing of how the tester reaches a registry count."""
    names = [name for name in os.environ if name.lower().startswith("npm_config_")]
    names += [name for name in os.environ if name.lower().endswith("_proxy") or "CERT" in name]
    return dict.fromkeys(names, "") | {"HOME": "/nonexistent"}


@contextlib.asynccontextmanager
async def made_up(
    home: Path, variables: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[Executor]:
    """A server that finds only packages that tests make up."""
    with registry.serving() as npm:
        async with executor(npm, variables, home=home, **settings) as running:
            yield running


def runners(pid: int) -> list[int]:
    """Processes of a server that hold a package, with what is around each."""
    return [each for each in descendants(pid) if runs(each, "npm.js")]


async def eventually(condition: Callable[[], object]) -> None:
    """Waits for what no event tells of, while the loop goes on."""
    async with asyncio.timeout(PATIENCE):
        for _ in itertools.repeat(None):
            if condition():
                return
            await asyncio.sleep(0.005)


class Meeting:
    """Where a tool says that it is there (`/said/…`), waits until it is let go (`/wait/…`), or is sent to a
    port (`/sent/…`)."""

    def __init__(self) -> None:
        self.url = ""
        self.requests = 0
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def said(self, word: str) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._events[word].wait()

    def let_go(self, word: str) -> None:
        self._events[word].set()

    @property
    def address(self) -> str:
        """As egress rules name it."""
        return self.url.removeprefix("http://")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            _, what, word = head.split(" ")[1].split("/")
            self.requests += 1
            if what != "wait":
                self._events[word].set()
            await self._events[word].wait()
            start = "200 OK"
            if what == "sent":
                start = f"302 Found\r\nLocation: http://127.0.0.1:{word}/"
            writer.write(f"HTTP/1.1 {start}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
            await writer.drain()


@contextlib.asynccontextmanager
async def meeting() -> AsyncIterator[Meeting]:
    place = Meeting()
    server = await asyncio.start_server(place._serve, "127.0.0.1", 0)
    place.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield place
    finally:
        for event in place._events.values():
            event.set()
        server.close()
