"""A small TPMJS executor that complies with everything and executes nothing; its answers can be spoiled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.processes import PATIENCE

CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
}
PACKAGE = "@tpmjs/tools-template-render"
TOOL = "templateRenderTool"
# In a package of this name: a tool that never ends, and one that ends at once.
SLOW_PACKAGE = "slow"
IN_1_1 = {
    "INVALID_REQUEST": ("request", "INVALID_REQUEST"),
    "UNAUTHORIZED": ("request", "AUTHENTICATION_REQUIRED"),
    "PACKAGE_NOT_FOUND": ("load", "PACKAGE_IMPORT_FAILED"),
    "TOOL_NOT_FOUND": ("load", "TOOL_NOT_FOUND"),
    "EXECUTION_TIMEOUT": ("execute", "EXECUTION_TIMEOUT"),
}


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    """Without `/api` and without doubled slashes."""
    raw_path: str
    headers: dict[str, str]
    body: Any = None
    """What the JSON says; None also when it says nothing or is none."""
    size: int = 0
    chunked: bool = False

    @property
    def executes(self) -> bool:
        return (self.method, self.path) == ("POST", "/execute-tool")

    def of(self, **fields: object) -> bool:
        """Whether the body has these values."""
        body = self.body if isinstance(self.body, dict) else {}
        return all(body.get(name) == value for name, value in fields.items())


@dataclass
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=lambda: dict(CORS))
    delay: float = 0.0
    hangs: bool = False


Spoil = Callable[[Asked, Reply], object]


class Executor:
    """What the server does; tests change it while it runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reset()

    def reset(self) -> None:
        self.key: str | None = None
        self.max_ms = 120_000
        self.max_body = 200_000
        self.places = 1_000
        self.running = 0
        self.spoil: Spoil = lambda asked, reply: None
        self.seen: list[Asked] = []
        self.faults: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = Asked(
            request.method,
            re.sub("^/api(?=/)", "", re.sub("/+", "/", request.url.path)),
            request.url.path,
            dict(request.headers),
            chunked="content-length" not in request.headers,
        )
        self.seen.append(asked)
        reply = await self._reply(asked, request)
        try:
            self.spoil(asked, reply)
        except Exception as error:
            # A spoiled answer is wanted, a broken test is not.
            self.faults.append(error)
        # Until the client has gone.
        while reply.hangs and (await receive())["type"] != "http.disconnect":
            pass
        await asyncio.sleep(reply.delay)
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Type": "application/json", **reply.headers}
        await Response(content, reply.status, headers)(scope, receive, send)

    async def _reply(self, asked: Asked, request: Request) -> Reply:
        match asked.method, asked.path:
            case "OPTIONS", _:
                return Reply(204, b"")
            case "GET", "/health":
                return Reply(200, {"status": "ok", "protocolVersion": "1.0", "implementationVersion": "0"})
            case "GET", "/info":
                return Reply(200, self._info())
            case "GET", "/openapi.json":
                return Reply(200, {"openapi": "3.1.0", "paths": {"/health": {}, "/execute-tool": {}}})
            case "POST", ("/execute-tool" | "/load-and-describe" | "/validate-tool" | "/execute-batch"):
                return await self._post(asked, request)
            case _, ("/health" | "/info" | "/execute-tool"):
                return refusal(asked, 405, "METHOD_NOT_ALLOWED")
            case _:
                return refusal(asked, 404, "NOT_FOUND")

    def _info(self) -> dict[str, Any]:
        return {
            "name": "Fake",
            "version": "0",
            "protocolVersion": "1.0",
            "capabilities": {
                "isolation": "none",
                "executionModes": ["sync", "stream"],
                "maxExecutionTimeMs": self.max_ms,
                "maxRequestBodyBytes": self.max_body,
                "supportsStreaming": True,
                "supportsCallbacks": False,
            },
        }

    async def _post(self, asked: Asked, request: Request) -> Reply:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if self.key is not None and (scheme.lower(), key) != ("bearer", self.key):
            return refusal(asked, 401, "UNAUTHORIZED")
        raw = bytearray()
        async for chunk in request.stream():
            raw += chunk
            asked.size = len(raw)
            if len(raw) > self.max_body:
                return refusal(asked, 413, "PAYLOAD_TOO_LARGE")
        try:
            asked.body = json.loads(raw)
        except ValueError:
            return refusal(asked, 400, "INVALID_REQUEST")
        if self.running >= self.places:
            reply = refusal(asked, 503, "BUSY")
            reply.headers["Retry-After"] = "1"
            return reply
        self.running += 1
        try:
            return await self._run(asked)
        finally:
            self.running -= 1

    async def _run(self, asked: Asked) -> Reply:
        if asked.path == "/execute-batch":
            results = [(await self._execute(asked, each)).body for each in asked.body["tools"]]
            return Reply(200, {"success": True, "results": results, "executionTimeMs": 1})
        reply = await self._execute(asked, asked.body)
        if not reply.body["success"]:
            return reply
        if asked.path != "/execute-tool":
            tool = {"name": TOOL, "description": "Renders.", "inputSchema": {"type": "object"}}
            return Reply(200, {"success": True, "tool": tool})
        if asked.headers.get("accept") == "text/event-stream":
            events = f"event: log\ndata: on\n\nevent: result\ndata: {json.dumps(reply.body)}\n\n"
            return Reply(200, events.encode(), {**CORS, "Content-Type": "text/event-stream"})
        return reply

    async def _execute(self, asked: Asked, body: Any) -> Reply:
        if not _is_request(body):
            return refusal(asked, 400, "INVALID_REQUEST")
        name, version = body["packageName"], body.get("version", "latest")
        if name not in (PACKAGE, SLOW_PACKAGE) or version not in ("0.1.0", "latest"):
            return failure(asked, "PACKAGE_NOT_FOUND")
        if (name, body["name"]) == (SLOW_PACKAGE, "sleep"):
            await asyncio.sleep(self.max_ms / 1000)
            return failure(asked, "EXECUTION_TIMEOUT")
        if (name, body["name"]) not in ((PACKAGE, TOOL), (SLOW_PACKAGE, "wake")):
            return failure(asked, "TOOL_NOT_FOUND")
        params = body.get("params", {})
        rendered = str(params.get("template")).replace("{{name}}", "Hutch")
        return success({"rendered": rendered})


def _is_request(body: object) -> bool:
    if not isinstance(body, dict) or not isinstance(body.get("params", {}), dict):
        return False
    texts = [
        body.get("packageName"),
        body.get("name"),
        body.get("version", ""),
        *body.get("env", {}).values(),
    ]
    named = bool(body.get("packageName") and body.get("name"))
    return named and all(isinstance(text, str) for text in texts)


def success(output: object) -> Reply:
    return Reply(200, {"success": True, "output": output, "executionTimeMs": 1})


def refusal(asked: Asked, status: int, code: str) -> Reply:
    if asked.headers.get("x-tpmjs-protocol-version") == "1.1":
        stage, code = IN_1_1.get(code, ("executor", "EXECUTOR_INTERNAL_ERROR"))
        told = {"error": "no", "errorStage": stage, "errorCode": code, "retryable": False}
        return Reply(status, {"success": False, **told, "executionTimeMs": 0})
    error = {"code": code, "message": "no"}
    return Reply(status, {"success": False, "error": error})


def failure(asked: Asked, code: str) -> Reply:
    reply = refusal(asked, 200, code)
    reply.body["executionTimeMs"] = 1
    return reply


@contextlib.contextmanager
def running() -> Iterator[Executor]:
    """The executor on a port of loopback, in a thread with a loop of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        executor = Executor(f"http://127.0.0.1:{listener.getsockname()[1]}")
        config = uvicorn.Config(executor, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield executor
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextlib.contextmanager
def answering(said: bytes | None, *, reset: bool = False) -> Iterator[str]:
    """A server that says this to everybody and hangs up, or says nothing at all; its address.

    `reset`: it hangs up on what it is being sent.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:

        def serve() -> None:
            # Closing the listener is what ends it.
            with contextlib.suppress(OSError):
                while True:
                    peer = kept.enter_context(listener.accept()[0])
                    if said is None:
                        continue
                    peer.recv(1024)
                    peer.sendall(said)
                    if reset:
                        peer.close()
                    else:
                        peer.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
