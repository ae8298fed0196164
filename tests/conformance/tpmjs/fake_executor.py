"""A small TPMJS executor that complies with the whole protocol but executes no tools. Faults change its
responses.
"""

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
from tests.support.processes import TIMEOUT_SECONDS

CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
}
PACKAGE = "@tpmjs/tools-template-render"
TOOL = "templateRenderTool"
# A package with the tool `sleep`, which never ends, and the tool `wake`, which ends at once.
SLOW_PACKAGE = "slow"
CODES_1_1 = {
    "INVALID_REQUEST": ("request", "INVALID_REQUEST"),
    "UNAUTHORIZED": ("request", "AUTHENTICATION_REQUIRED"),
    "PACKAGE_NOT_FOUND": ("load", "PACKAGE_IMPORT_FAILED"),
    "TOOL_NOT_FOUND": ("load", "TOOL_NOT_FOUND"),
    "EXECUTION_TIMEOUT": ("execute", "EXECUTION_TIMEOUT"),
}


@dataclass
class ReceivedRequest:
    method: str
    path: str
    """Without `/api` and doubled slashes."""
    raw_path: str
    headers: dict[str, str]
    body: Any = None
    """Decoded JSON; None also if it is missing or invalid."""
    size: int = 0
    chunked: bool = False

    @property
    def is_execution(self) -> bool:
        return (self.method, self.path) == ("POST", "/execute-tool")

    def has(self, **fields: object) -> bool:
        """Returns whether the body has these fields with these values."""
        body = self.body if isinstance(self.body, dict) else {}
        return all(body.get(name) == value for name, value in fields.items())


@dataclass
class FakeReply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=lambda: dict(CORS))
    delay: float = 0.0
    hangs: bool = False


Fault = Callable[[ReceivedRequest, FakeReply], object]


class FakeExecutor:
    """ASGI application of the fake executor. Tests change its behaviour while it runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reset()

    def reset(self) -> None:
        self.key: str | None = None
        self.max_ms = 120_000
        self.max_body = 200_000
        self.max_running = 1_000
        self.running = 0
        self.has_queue = False
        """True if it executes asynchronous calls."""
        self.health_check: Any = {"testParams": {"template": "at {{timestamp}}"}}
        self.fault: Fault = lambda request, reply: None
        self.requests: list[ReceivedRequest] = []
        self.errors: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http_request = Request(scope, receive)
        request = ReceivedRequest(
            http_request.method,
            re.sub("^/api(?=/)", "", re.sub("/+", "/", http_request.url.path)),
            http_request.url.path,
            dict(http_request.headers),
            chunked="content-length" not in http_request.headers,
        )
        self.requests.append(request)
        reply = await self._reply(request, http_request)
        try:
            self.fault(request, reply)
        except Exception as error:
            # If a fault function raises, the test has a mistake. The fixture reports the exception at the
            # end.
            self.errors.append(error)
        # Wait until the client disconnects.
        while reply.hangs and (await receive())["type"] != "http.disconnect":
            pass
        await asyncio.sleep(reply.delay)
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Type": "application/json", **reply.headers}
        await Response(content, reply.status, headers)(scope, receive, send)

    async def _reply(self, request: ReceivedRequest, http_request: Request) -> FakeReply:
        match request.method, request.path:
            case "OPTIONS", _:
                return FakeReply(204, b"")
            case "GET", "/health":
                return FakeReply(
                    200, {"status": "ok", "protocolVersion": "1.0", "implementationVersion": "0"}
                )
            case "GET", "/info":
                return FakeReply(200, self._info())
            case "GET", "/openapi.json":
                return FakeReply(200, {"openapi": "3.1.0", "paths": {"/health": {}, "/execute-tool": {}}})
            case "POST", ("/execute-tool" | "/load-and-describe" | "/validate-tool" | "/execute-batch"):
                return await self._post(request, http_request)
            case "POST", "/execute-async" if self.has_queue:
                reply = await self._post(request, http_request)
                accepted = {"success": True, "runId": "1", "statusUrl": "/runs/1"}
                return reply if reply.status != 200 else FakeReply(202, accepted)
            case "GET", "/runs/1" if self.has_queue:
                return FakeReply(200, {"status": "completed"})
            case _, ("/health" | "/info" | "/execute-tool"):
                return refusal(request, 405, "METHOD_NOT_ALLOWED")
            case _:
                return refusal(request, 404, "NOT_FOUND")

    def _info(self) -> dict[str, Any]:
        return {
            "name": "Fake",
            "version": "0",
            "protocolVersion": "1.0",
            "capabilities": {
                "isolation": "none",
                "executionModes": ["sync", "stream", *(["async"] if self.has_queue else [])],
                "maxExecutionTimeMs": self.max_ms,
                "maxRequestBodyBytes": self.max_body,
                "supportsStreaming": True,
                "supportsCallbacks": self.has_queue,
            },
        }

    async def _post(self, request: ReceivedRequest, http_request: Request) -> FakeReply:
        scheme, _, key = http_request.headers.get("authorization", "").partition(" ")
        if self.key is not None and (scheme.lower(), key) != ("bearer", self.key):
            return refusal(request, 401, "UNAUTHORIZED")
        raw = bytearray()
        async for chunk in http_request.stream():
            raw += chunk
            request.size = len(raw)
            if len(raw) > self.max_body:
                return refusal(request, 413, "PAYLOAD_TOO_LARGE")
        try:
            request.body = json.loads(raw)
        except ValueError:
            return refusal(request, 400, "INVALID_REQUEST")
        if self.running >= self.max_running:
            reply = refusal(request, 503, "BUSY")
            reply.headers["Retry-After"] = "1"
            return reply
        self.running += 1
        try:
            return await self._run(request)
        finally:
            self.running -= 1

    async def _run(self, request: ReceivedRequest) -> FakeReply:
        if request.path == "/execute-batch":
            results = [(await self._execute(request, tool)).body for tool in request.body["tools"]]
            return FakeReply(200, {"success": True, "results": results, "executionTimeMs": 1})
        reply = await self._execute(request, request.body)
        if not reply.body["success"]:
            return reply
        if request.path != "/execute-tool":
            tool: dict[str, Any] = {
                "name": TOOL,
                "description": "Renders.",
                "inputSchema": {"type": "object"},
            }
            if self.health_check is not None:
                tool["healthCheck"] = self.health_check
            return FakeReply(200, {"success": True, "tool": tool})
        if request.headers.get("accept") == "text/event-stream":
            events = f"event: log\ndata: on\n\nevent: result\ndata: {json.dumps(reply.body)}\n\n"
            return FakeReply(200, events.encode(), {**CORS, "Content-Type": "text/event-stream"})
        return reply

    async def _execute(self, request: ReceivedRequest, body: Any) -> FakeReply:
        if not _is_request(body):
            return refusal(request, 400, "INVALID_REQUEST")
        name, version = body["packageName"], body.get("version", "latest")
        if name not in (PACKAGE, SLOW_PACKAGE) or version not in ("0.1.0", "latest"):
            return failure(request, "PACKAGE_NOT_FOUND")
        if (name, body["name"]) == (SLOW_PACKAGE, "sleep"):
            await asyncio.sleep(self.max_ms / 1000)
            return failure(request, "EXECUTION_TIMEOUT")
        if (name, body["name"]) not in ((PACKAGE, TOOL), (SLOW_PACKAGE, "wake")):
            return failure(request, "TOOL_NOT_FOUND")
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


def success(output: object) -> FakeReply:
    return FakeReply(200, {"success": True, "output": output, "executionTimeMs": 1})


def refusal(request: ReceivedRequest, status: int, code: str) -> FakeReply:
    if request.headers.get("x-tpmjs-protocol-version") == "1.1":
        stage, code = CODES_1_1.get(code, ("executor", "EXECUTOR_INTERNAL_ERROR"))
        fields = {"error": "no", "errorStage": stage, "errorCode": code, "retryable": False}
        return FakeReply(status, {"success": False, **fields, "executionTimeMs": 0})
    error = {"code": code, "message": "no"}
    return FakeReply(status, {"success": False, "error": error})


def failure(request: ReceivedRequest, code: str) -> FakeReply:
    reply = refusal(request, 200, code)
    reply.body["executionTimeMs"] = 1
    return reply


@contextlib.contextmanager
def running() -> Iterator[FakeExecutor]:
    """Serves the executor on a loopback port, in a thread with its own event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        executor = FakeExecutor(f"http://127.0.0.1:{listener.getsockname()[1]}")
        config = uvicorn.Config(executor, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield executor
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_SECONDS)


@contextlib.contextmanager
def answering(response: bytes | None, *, reset: bool = False) -> Iterator[str]:
    """Sends `response` to every client and closes the connection. Sends nothing if `response` is None. Yields
    the address.

    With `reset`, closes the connection while the client is still sending.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:

        def serve() -> None:
            # Closing the listener raises OSError in this thread and so ends the loop.
            with contextlib.suppress(OSError):
                while True:
                    peer = peers.enter_context(listener.accept()[0])
                    if response is None:
                        continue
                    peer.recv(1024)
                    peer.sendall(response)
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
            thread.join(TIMEOUT_SECONDS)
