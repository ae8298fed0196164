"""Continues the traces of clients that send the header `traceparent`."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hutch.telemetry.trace_context import parse_context, use_context


class TraceHeaders:
    """ASGI middleware. The runs of a request, or of a WebSocket, belong to the trace of its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with use_context(parse_context(Headers(scope=scope).get)):
            await self._app(scope, receive, send)
