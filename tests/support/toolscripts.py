"""Runs toolscripts in this process (checked, jailed, with real MCP servers) or with `hutch exec`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.support.forked import forked_script
from tests.support.mcp_servers import everything, tracker
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.processes import (
    TIMEOUT_SECONDS,
    ServeProcess,
    arguments_of,
    descendants,
    is_runner,
    start_hutch,
    stop_process,
)

from hutch import settings
from hutch.app.app import App
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.execute import ScriptRequest
from hutch.protocols.toolscript.gateway.local import LocalGateway
from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse

SERVERS = Path(__file__).parent / "mcp_servers"
IMPORT = 'import { tools, ToolError } from "toolscript";\n'
TOKEN = "a token that no script may have"


def stdio(name: str, **more: Any) -> dict[str, Any]:
    """A configuration entry for one of the test servers."""
    return {"command": sys.executable, "args": forked_script(SERVERS / f"{name}.py"), **more}


@contextlib.contextmanager
def everything_entry() -> Iterator[dict[str, Any]]:
    """A configuration entry for the "everything" server over HTTP, which needs no new process."""
    with running_app(everything.app(everything.Everything())) as here:
        yield {"type": "http", "url": f"{here.url}/mcp"}


def configure(folder: Path, servers: dict[str, Any]) -> str:
    """Writes a configuration and returns its path."""
    file = folder / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return str(file)


class ScriptRun(NamedTuple):
    """Outcome of a script as `hutch exec` would show it."""

    exit_code: int
    stdout: str
    stderr: str
    value: Any
    message: str | None
    error: InvalidScript | None = None


class RecordedRequest(NamedTuple):
    """A script's request as received by the gateway."""

    method: str
    path: str
    query: str
    headers: dict[str, str]


class RecordingGateway(LocalGateway):
    """Records the requests of scripts."""

    def __init__(self, app: App, on_request: Callable[[RecordedRequest], Awaitable[None]]) -> None:
        settings = app.settings
        super().__init__(app.gateway, port=settings.port, max_body_bytes=settings.max_body_bytes)
        self._on_request = on_request

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        headers = {name.decode(): value.decode() for name, value in request.headers}
        recorded = RecordedRequest(request.method, request.path, request.query.decode(), headers)
        await self._on_request(recorded)
        await super().handle(run_id, request, response)


class ScriptEnvironment:
    """An App with a gateway. Records the requests of the scripts that it runs."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.requests: list[RecordedRequest] = []
        self.modules: list[RecordedRequest] = []
        """All requests for the module, including those of prewarmed processes."""
        self._changed = asyncio.Condition()
        self.script_gateway = RecordingGateway(app, self._record)

    async def _record(self, request: RecordedRequest) -> None:
        self.requests.append(request)
        if request.path.startswith("/runtime/"):
            self.modules.append(request)
        async with self._changed:
            self._changed.notify_all()

    async def until_called(self, name: str, times: int = 1) -> None:
        """Waits until scripts have called a tool this many times."""
        async with asyncio.timeout(TIMEOUT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.calls().count(name) >= times)

    def calls(self) -> list[str]:
        """Returns the names of the called tools."""
        prefix = "/tools/"
        return [each.path.removeprefix(prefix) for each in self.requests if each.path.startswith(prefix)]

    async def run(
        self,
        code: str,
        *,
        files: dict[str, str] | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
        **request: Any,
    ) -> ScriptRun:
        streams = {"stdout": bytearray(), "stderr": bytearray()}

        def on_chunk(stream: Any, data: bytes) -> None:
            streams[stream] += data
            if on_output is not None:
                on_output(stream, data)

        try:
            script = Script(code, files=files or {})
            result = await self.app.scripts.run(
                ScriptRequest(script=script, on_output=on_chunk, **request), self.script_gateway
            )
        except InvalidScript as error:
            return ScriptRun(1, "", error.message, None, None, error)
        value = None if result.value_json is None else json.loads(result.value_json)
        out, err = (bytes(each).decode() for each in streams.values())
        return ScriptRun(result.exit_code, out, err, value, result.message)


@contextlib.asynccontextmanager
async def script_environment(
    folder: Path, servers: dict[str, Any], **more: Any
) -> AsyncIterator[ScriptEnvironment]:
    flags = {"quickjs_warm": 0, "deno_warm": 0, "mcp_config": (configure(folder, servers),)}
    app = await App.create(settings.load_settings({**flags, **more}))
    try:
        yield ScriptEnvironment(app)
    finally:
        await app.close()


@contextlib.asynccontextmanager
async def usual_environment(folder: Path, **more: Any) -> AsyncIterator[ScriptEnvironment]:
    """An environment with three MCP servers. `every` and `github` use stdio, and `my-atlassian` uses HTTP."""
    with running_app(tracker.app()) as tracker_server:
        servers = {
            "every": stdio("everything"),
            "github": stdio("tracker"),
            "my-atlassian": {"type": "http", "url": f"{tracker_server.url}/mcp"},
        }
        async with script_environment(folder, servers, api_key=TOKEN, **more) as environment:
            yield environment


def scripts_below(pid: int) -> list[int]:
    """Returns the descendants of a process that are Deno processes and run scripts. The bubblewrap processes
    around them are not returned.
    """
    return [
        each for each in descendants(pid) if is_runner(each, "script.js") and "run" in arguments_of(each)[:2]
    ]


class GatewayProcess(ServeProcess):
    """A running `hutch gateway start`."""

    announcement = r"Hutch gateway: \d+ MCP servers at (http://\S+)"


@contextlib.contextmanager
def gateway(*arguments: str, cwd: Path | None = None, **env: str) -> Iterator[GatewayProcess]:
    with start_hutch(["gateway", "start", "--port", "0", *arguments], env=env, text=True, cwd=cwd) as process:
        try:
            yield GatewayProcess(process)
        finally:
            stop_process(process)


def start_command(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
    """Starts a `hutch` command and returns its process, so that a test can interact with it."""
    return start_hutch(arguments, env=env, cwd=cwd)


def decoded(text: str) -> Any:
    return msgspec.json.decode(text)
