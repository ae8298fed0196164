"""Toolscripts run for real in this process: checked, jailed, over real MCP servers. And by `hutch exec`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send
from tests.forked import lent
from tests.mcp_servers import everything, tracker
from tests.mcp_servers.serving import serving
from tests.processes import PATIENCE, Server, arguments_of, descendants, end, runs, started

from hutch import settings
from hutch.app import App
from hutch.doors.toolscript.check import Script
from hutch.doors.toolscript.execute import Request
from hutch.doors.toolscript.here import Here
from hutch.doors.toolscript.problems import ScriptRefused

SERVERS = Path(__file__).parent / "mcp_servers"
IMPORT = 'import { tools, ToolError } from "toolscript";\n'
TOKEN = "a token that no script may have"


def stdio(name: str, **more: Any) -> dict[str, Any]:
    """An entry of the configuration for one of our servers."""
    return {"command": sys.executable, "args": lent(SERVERS / f"{name}.py"), **more}


@contextlib.contextmanager
def everything_here() -> Iterator[dict[str, Any]]:
    """An entry for the server that has everything, over HTTP: no process has to start for it."""
    with serving(everything.app(everything.Everything())) as here:
        yield {"type": "http", "url": f"{here.url}/mcp"}


def configure(folder: Path, servers: dict[str, Any]) -> str:
    """Writes a configuration; its path."""
    file = folder / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return str(file)


class Ran(NamedTuple):
    """How a script ended, as `hutch exec` would show it."""

    exit_code: int
    stdout: str
    stderr: str
    value: Any
    message: str | None
    refused: ScriptRefused | None = None


class Asked(NamedTuple):
    """A request of a script as the gateway got it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]


class Place:
    """An App with a gateway, and what its scripts asked of it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.asked: list[Asked] = []
        self.modules: list[Asked] = []
        """Requests for the module that were ever made: also by processes made ready ahead of a script."""
        self._news = asyncio.Condition()
        key = app.settings.api_key
        self.world = Here(app.gateway, self._note, port=app.settings.port, token=key)

    async def _note(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = Asked(scope["method"], scope["path"], scope["query_string"].decode(), headers)
        self.asked.append(asked)
        if asked.path.startswith("/runtime/"):
            self.modules.append(asked)
        async with self._news:
            self._news.notify_all()
        await self.app.gateway_app(scope, receive, send)

    async def until_called(self, name: str, times: int = 1) -> None:
        """Waits for scripts to call a tool."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: self.calls().count(name) >= times)

    def calls(self) -> list[str]:
        """The tools that were called."""
        prefix = "/tools/"
        return [each.path.removeprefix(prefix) for each in self.asked if each.path.startswith(prefix)]

    async def run(
        self,
        code: str,
        *,
        files: dict[str, str] | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
        **request: Any,
    ) -> Ran:
        streams = {"stdout": bytearray(), "stderr": bytearray()}

        def came(stream: Any, data: bytes) -> None:
            streams[stream] += data
            if on_output is not None:
                on_output(stream, data)

        try:
            script = Script(code, files=files or {})
            ending = await self.app.scripts.run(Request(script=script, on_output=came, **request), self.world)
        except ScriptRefused as refused:
            return Ran(1, "", refused.message, None, None, refused)
        value = None if ending.value_json is None else json.loads(ending.value_json)
        out, err = (bytes(each).decode() for each in streams.values())
        return Ran(ending.exit_code, out, err, value, ending.message)


@contextlib.asynccontextmanager
async def place(folder: Path, servers: dict[str, Any], **more: Any) -> AsyncIterator[Place]:
    flags = {"quickjs_warm": 0, "deno_warm": 0, "mcp_config": (configure(folder, servers),)}
    app = await App.create(settings.load({**flags, **more}))
    try:
        yield Place(app)
    finally:
        await app.close()


@contextlib.asynccontextmanager
async def usual_place(folder: Path, **more: Any) -> AsyncIterator[Place]:
    """Three servers: `every` and `github` over stdio, `my-atlassian` over HTTP."""
    with serving(tracker.app()) as far:
        servers = {
            "every": stdio("everything"),
            "github": stdio("tracker"),
            "my-atlassian": {"type": "http", "url": f"{far.url}/mcp"},
        }
        async with place(folder, servers, api_key=TOKEN, **more) as made:
            yield made


def scripts_below(pid: int) -> list[int]:
    """The Deno processes that run scripts: not what started them."""
    return [each for each in descendants(pid) if runs(each, "script.js") and "run" in arguments_of(each)[:2]]


class Gateway(Server):
    """A running `hutch gateway start`."""

    announcement = r"Hutch's gateway serves \d+ MCP servers at (http://\S+)"


@contextlib.contextmanager
def gateway(*arguments: str, cwd: Path | None = None, **env: str) -> Iterator[Gateway]:
    with started(["gateway", "start", "--port", "0", *arguments], env=env, text=True, cwd=cwd) as process:
        try:
            yield Gateway(process)
        finally:
            end(process)


def starts(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
    """A command that is to be spoken with while it runs."""
    return started(arguments, env=env, cwd=cwd)


def decoded(text: str) -> Any:
    return msgspec.json.decode(text)
