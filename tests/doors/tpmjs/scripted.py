"""A door with tools behind it that do what a test wants, in this process or on a real port."""

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
from tests.doors.listening import listening as on_port
from tests.processes import PATIENCE

from hutch.doors import health, refusals
from hutch.doors.cors import Cors
from hutch.doors.gate import Gate
from hutch.doors.toolscript.gateway import Gateway
from hutch.doors.tpmjs import http as tpmjs
from hutch.doors.tpmjs.calls import Events, ToolCall, ToolDescription, ToolFailure, ToolOutcome
from hutch.errors import Busy, InvalidPackage
from hutch.sandbox.verdict import Verdict
from hutch.settings import Settings

VERDICT = Verdict("container", seccomp=True, cgroup=None, checks=[], deno="2.9.8", bwrap=None)
DENO = "2.9.8"
FAULT = "a fault with a path, /etc/hutch/key"


class Tools:
    """Each of its tools is a method: what is executed is the one with the call's name."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.described = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0

    async def begun_with(self, count: int) -> None:
        """Waits until so many calls have begun."""
        while len(self.calls) < count:
            self.begun.clear()
            await asyncio.wait_for(self.begun.wait(), PATIENCE)

    async def execute(self, call: ToolCall, events: Events | None = None) -> ToolOutcome:
        self.calls.append(call)
        self.begun.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            outcome: ToolOutcome = await getattr(self, call.name)(call, events)
            return outcome
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.at_once -= 1

    async def describe(self, call: ToolCall) -> tuple[ToolDescription | None, ToolFailure | None, str | None]:
        self.described += 1
        outcome = await self.execute(call)
        if outcome.failure is not None:
            return None, outcome.failure, outcome.resolved_version
        schema = {"type": "object", "properties": {"to": {"type": "string"}}}
        tool = ToolDescription(name=call.name, description="Says it back", input_schema=schema)
        return tool, None, outcome.resolved_version

    async def echo(self, call: ToolCall, _: Events | None) -> ToolOutcome:
        return done(json.dumps(call.params).encode(), resolved_version="1.2.3")

    async def undefined(self, _: ToolCall, __: Events | None) -> ToolOutcome:
        return done(None)

    async def raw(self, call: ToolCall, _: Events | None) -> ToolOutcome:
        return done(call.params["json"].encode())

    async def large(self, call: ToolCall, _: Events | None) -> ToolOutcome:
        return done(b'"%b"' % (b"x" * call.params["size"]))

    async def fail(self, call: ToolCall, _: Events | None) -> ToolOutcome:
        return ToolOutcome(
            failure=ToolFailure(**{"message": "it broke", **call.params}),
            resolved_version="1.2.3",
            logs=["so far"],
        )

    async def talk(self, call: ToolCall, events: Events | None) -> ToolOutcome:
        """Prints, and gives values bit by bit."""
        lines, values = call.params.get("lines", []), call.params.get("values", [])
        for line in lines:
            if events is not None:
                events.log(line)
        for value in values:
            if events is not None:
                events.partial(value.encode())
        output = b"[%b]" % ",".join(values).encode()
        return done(output, logs=lines, logs_truncated=call.params.get("cut", False), run_id="r1")

    async def wait(self, call: ToolCall, events: Events | None) -> ToolOutcome:
        """Until it may go."""
        if events is not None:
            events.log("waiting")
        await self.go.wait()
        return done(b'"went"')

    async def flood(self, call: ToolCall, events: Events | None) -> ToolOutcome:
        """Says more than anybody could read meanwhile."""
        assert events is not None
        for number in range(call.params["lines"]):
            events.log(f"{number} " + "x" * 1000)
        return done(b"null")

    async def busy(self, _: ToolCall, __: Events | None) -> ToolOutcome:
        raise Busy("No place came free.", retry_after=7.2)

    async def unknown(self, _: ToolCall, __: Events | None) -> ToolOutcome:
        raise InvalidPackage("version", "there is none such")

    async def crash(self, _: ToolCall, __: Events | None) -> ToolOutcome:
        raise OSError(FAULT)

    async def impatient(self, _: ToolCall, __: Events | None) -> ToolOutcome:
        raise TimeoutError(FAULT)


def done(output: bytes | None, **more: Any) -> ToolOutcome:
    return ToolOutcome(output_json=output, **more)


class Door:
    """The tools, the gate, and the whole application as `hutch serve` builds it."""

    def __init__(self, **settings: Any) -> None:
        self.tools = Tools()
        self.settings = Settings(**settings)
        self.gate = Gate(self.settings)
        seen = SimpleNamespace(pool=None, verdict=VERDICT, counters=None, gateway=Gateway(SimpleNamespace()))
        web = Starlette(
            routes=[
                *health.routes(seen, self.gate),
                *tpmjs.routes(self.tools, self.gate, self.settings, VERDICT, DENO),
            ],
            exception_handlers={HTTPException: refusals.on_http_exception, Exception: refusals.on_fault},
        )
        web.router.default = refusals.nowhere
        web.router.redirect_slashes = False
        self.app: ASGIApp = Cors(web)
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False, client=("192.0.2.1", 1))
        self.client = httpx2.AsyncClient(transport=transport, timeout=PATIENCE)

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value.encode("latin-1") for name, value in headers.items()}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(
            f"http://127.0.0.1{path}", content=raw, headers={"Content-Type": b"application/json", **named}
        )

    async def execute(self, name: str, params: Any = None, **headers: str) -> httpx2.Response:
        return await self.post("/execute-tool", call(name, params), **headers)


def call(name: str, params: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if params is None else {"params": params}
    return {"packageName": "some-tools", "name": name, **given, **more}


def listening(door: Door) -> contextlib.AbstractAsyncContextManager[str]:
    """The door on a real port; its host and port."""
    return on_port(door.app, door.tools.go)


def request(host: str, path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """A request, byte for byte."""
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *headers]
    if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


@contextlib.asynccontextmanager
async def connected(host: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    name, _, port = host.partition(":")
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(name, int(port), limit=2**26)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One answer: status, headers, body."""
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


def events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream, without its comments."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    pairs = [block.split("\n", 1) for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]
