"""Gateway of this process, used by scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from hutch.http.errors import ApiError, method_not_allowed
from hutch.http.requests import check_headers, check_size, parse_optional_object
from hutch.protocols.toolscript.gateway.endpoints import GatewayEndpoints, naming_tool, tool_name
from hutch.protocols.toolscript.gateway.gateway import CompletedCall, Gateway
from hutch.protocols.toolscript.gateway.schemas import GatewayReply, api_error_reply
from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse
from hutch.session.run import CallLog, CallRecord
from hutch.settings import DEFAULT_PORT
from hutch.telemetry.trace_context import use_context


class LocalGateway:
    """The gateway of this process. Requests from jails reach it without a web application or token."""

    def __init__(self, gateway: Gateway, *, port: int, max_body_bytes: int) -> None:
        self.url = f"http://127.0.0.1:{port or DEFAULT_PORT}"
        self._gateway = gateway
        self._endpoints = GatewayEndpoints(gateway)
        self._max_body_bytes = max_body_bytes
        self._call_logs: dict[str, CallLog] = {}

    async def revision(self) -> str:
        await self._gateway.catalog()
        return self._gateway.revision

    async def declarations(self) -> str:
        return str(await self._gateway.declarations())

    @contextmanager
    def record_calls(self, run_id: str) -> Iterator[CallLog]:
        calls = CallLog()

        def note(call: CompletedCall) -> None:
            if call.run == run_id:
                start_ms = calls.since_start_ms(call.started)
                names = call.server, call.tool
                calls.add(
                    CallRecord.of(*names, call.ok, call.seconds, start_ms=start_ms, span_id=call.span_id)
                )

        self._gateway.on_call.append(note)
        self._call_logs[run_id] = calls
        try:
            yield calls
        finally:
            del self._call_logs[run_id]
            self._gateway.on_call.remove(note)

    def open_calls(self, run_id: str) -> list[str]:
        return self._gateway.open_calls(run_id)

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        try:
            reply = await self._reply(run_id or None, request)
        except ApiError as error:
            reply = api_error_reply(error)
        await response.send(reply.status, reply.headers, reply.body)

    async def _reply(self, run_id: str | None, request: JailRequest) -> GatewayReply:
        path = _canonical(request.path)
        if path.startswith("/tools/"):
            if request.method != "POST":
                raise method_not_allowed(request.path, request.method, ["POST"])
            name = tool_name(request.raw_path)
            with naming_tool(name):
                arguments = await self._arguments(request)
            calls = self._call_logs.get(run_id or "")
            trace = None if calls is None or calls.run is None else calls.run.trace
            with use_context(None if trace is None else trace.child()):
                return await self._endpoints.call(name, arguments, run_id)
        endpoint = self._endpoints.by_path.get(path)
        if endpoint is None and path not in ("/health", "/ready"):
            raise _no_access(request, path)
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed(request.path, request.method, ["GET", "HEAD"])
        if endpoint is None:
            return self._endpoints.health() if path == "/health" else self._endpoints.ready()
        params = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
        return await endpoint(params, request.header(b"if-none-match"))

    async def _arguments(self, request: JailRequest) -> dict[str, Any]:
        check_headers(lambda name: request.header(name.encode()) or None, self._max_body_bytes)
        body = request.take_body()
        check_size(len(body), self._max_body_bytes)
        return await parse_optional_object(body)


def _canonical(path: str) -> str:
    if "//" not in path and not path.startswith("/api/"):
        return path
    # Imported here because it loads Starlette, which scripts do not need otherwise.
    from hutch.http.routing import canonical_path

    return canonical_path(path)


def _no_access(request: JailRequest, path: str) -> ApiError:
    """Builds the error for a path that scripts cannot use. Scripts must not see the status or approve their
    own calls.
    """
    if path in ("/status", "/approvals") or path.startswith("/approvals/"):
        return ApiError("denied", f"Scripts have no access to {request.path}")
    return ApiError("not_found", f"There is nothing at {request.path}")
