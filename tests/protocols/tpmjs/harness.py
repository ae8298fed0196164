"""The TPMJS routes with fake tools, in this process or on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from tests.http.server.asgi_server import serve_app
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import Busy, InvalidPackage, QuotaExceeded
from hutch.http import health, responses
from hutch.http.auth import AccessControl
from hutch.http.middleware.cors import Cors
from hutch.protocols.toolscript.gateway.gateway import Gateway
from hutch.protocols.tpmjs import routes as tpmjs
from hutch.protocols.tpmjs.models import EventSink, PackageToolCall, ToolDescription, ToolFailure, ToolOutcome
from hutch.protocols.tpmjs.responses import VERSION_HEADER
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.session.run import RunHandle
from hutch.settings import Settings

SELF_TEST = SelfTestResult("container", seccomp=True, cgroup=None, checks=[], deno="2.9.8", bwrap=None)
DENO = "2.9.8"
FAULT = "a fault with a path, /etc/hutch/key"


class FakeTools:
    """Fake executor of tools. A call of the tool `name` runs the method `name` of this class."""

    def __init__(self) -> None:
        self.calls: list[PackageToolCall] = []
        self.described = 0
        self.batches: list[tuple[int, int]] = []
        """Number of failed calls and of all calls of each batch."""
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.concurrent = 0
        self.max_concurrent = 0

    async def wait_started(self, count: int) -> None:
        """Waits until this many calls have started."""
        while len(self.calls) < count:
            self.started.clear()
            await asyncio.wait_for(self.started.wait(), TIMEOUT_SECONDS)

    async def execute(self, call: PackageToolCall, parse_events: EventSink | None = None) -> ToolOutcome:
        self.calls.append(call)
        self.started.set()
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            outcome: ToolOutcome = await getattr(self, call.name)(call, parse_events)
            return outcome
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.concurrent -= 1

    async def describe(
        self, call: PackageToolCall
    ) -> tuple[ToolDescription | None, ToolFailure | None, str | None]:
        self.described += 1
        outcome = await self.execute(call)
        if outcome.failure is not None:
            return None, outcome.failure, outcome.resolved_version
        schema = {"type": "object", "properties": {"to": {"type": "string"}}}
        tool = ToolDescription(name=call.name, description="Says it back", input_schema=schema)
        return tool, None, outcome.resolved_version

    def begin_batch(self, run: RunHandle, caller: str, calls: int) -> None: ...

    def record_batch(self, run: RunHandle, caller: str, failed: int, calls: int, seconds: float) -> None:
        self.batches.append((failed, calls))

    async def echo(self, call: PackageToolCall, _: EventSink | None) -> ToolOutcome:
        return done(json.dumps(call.params).encode(), resolved_version="1.2.3")

    async def undefined(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        return done(None)

    async def warn(self, call: PackageToolCall, _: EventSink | None) -> ToolOutcome:
        return done(b"null", warnings=call.params["warnings"])

    async def raw(self, call: PackageToolCall, _: EventSink | None) -> ToolOutcome:
        return done(call.params["json"].encode())

    async def large(self, call: PackageToolCall, _: EventSink | None) -> ToolOutcome:
        return done(b'"%b"' % (b"x" * call.params["size"]))

    async def fail(self, call: PackageToolCall, _: EventSink | None) -> ToolOutcome:
        return ToolOutcome(
            failure=ToolFailure(**{"message": "it broke", **call.params}),
            resolved_version="1.2.3",
            logs=["so far"],
        )

    async def talk(self, call: PackageToolCall, parse_events: EventSink | None) -> ToolOutcome:
        """Prints lines and yields values."""
        lines, values = call.params.get("lines", []), call.params.get("values", [])
        for line in lines:
            if parse_events is not None:
                parse_events.log(line)
        for value in values:
            if parse_events is not None:
                parse_events.partial(value.encode())
        output = b"[%b]" % ",".join(values).encode()
        return done(output, logs=lines, logs_truncated=call.params.get("cut", False), run_id="r1")

    async def wait(self, call: PackageToolCall, parse_events: EventSink | None) -> ToolOutcome:
        """Waits until `go` is set."""
        if parse_events is not None:
            parse_events.log("waiting")
        await self.go.wait()
        return done(b'"went"')

    async def flood(self, call: PackageToolCall, parse_events: EventSink | None) -> ToolOutcome:
        """Prints faster than a client can read."""
        assert parse_events is not None
        for number in range(call.params["lines"]):
            parse_events.log(f"{number} " + "x" * 1000)
        return done(b"null")

    async def busy(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        raise Busy("No runner became free.", retry_after=7.2)

    async def over_quota(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        raise QuotaExceeded(
            "Used up (max_executions_per_day).", retry_after=60, limit="max_executions_per_day"
        )

    async def unknown(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        raise InvalidPackage("version", "there is no such version")

    async def crash(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        raise OSError(FAULT)

    async def impatient(self, _: PackageToolCall, __: EventSink | None) -> ToolOutcome:
        raise TimeoutError(FAULT)


def done(output: bytes | None, **more: Any) -> ToolOutcome:
    return ToolOutcome(output_json=output, **more)


class TpmjsServer:
    """The whole application as `hutch serve` builds it, with fake tools."""

    def __init__(self, **settings: Any) -> None:
        self.tools = FakeTools()
        self.settings = Settings(**settings)
        self.access = AccessControl(self.settings)
        monitored = SimpleNamespace(
            verdict=SELF_TEST,
            gateway=Gateway(SimpleNamespace()),
            record_state=lambda: None,
        )
        web = Starlette(
            routes=[
                *health.routes(monitored, self.access),
                *tpmjs.routes(self.tools, self.access, self.settings, SELF_TEST, DENO),
            ],
            exception_handlers={
                HTTPException: responses.on_http_exception,
                Exception: responses.on_internal_error,
            },
        )
        web.router.default = responses.not_found_app
        web.router.redirect_slashes = False
        self.app: ASGIApp = Cors(web)
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False, client=("192.0.2.1", 1))
        self.client = httpx2.AsyncClient(
            transport=transport, headers={VERSION_HEADER: "1.0"}, timeout=TIMEOUT_SECONDS
        )
        self._client_without_version = httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_SECONDS)

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """Sends a request with protocol version 1.0, unless `headers` has another version."""
        named = {name.replace("_", "-"): value.encode("latin-1") for name, value in headers.items()}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(
            f"http://127.0.0.1{path}", content=raw, headers={"Content-Type": b"application/json", **named}
        )

    async def post_without_version(self, path: str, body: Any) -> httpx2.Response:
        return await self._client_without_version.post(f"http://127.0.0.1{path}", json=body)

    async def execute(self, name: str, params: Any = None, **headers: str) -> httpx2.Response:
        return await self.post("/execute-tool", call(name, params), **headers)


def call(name: str, params: Any = None, **more: Any) -> dict[str, Any]:
    optional = {} if params is None else {"params": params}
    return {"packageName": "some-tools", "name": name, **optional, **more}


def serve_on_port(server: TpmjsServer) -> contextlib.AbstractAsyncContextManager[str]:
    """Serves the application on a real port. Yields host and port."""
    return serve_app(server.app, server.tools.go)


def encode_request(host: str, path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """Builds the bytes of a request with protocol version 1.0."""
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"{VERSION_HEADER}: 1.0",
        *headers,
    ]
    if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


@contextlib.asynccontextmanager
async def open_connection(host: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    name, _, port = host.partition(":")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(name, int(port), limit=2**26)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Reads one response: status, headers, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return int(head[0].split(" ")[1]), headers, body


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Parses the events of a stream. Ignores comments."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    pairs = [block.split("\n", 1) for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]
