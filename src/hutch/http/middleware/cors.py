"""CORS headers for every response of an API. Access itself is checked in `http.auth`."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hutch.http.routing import canonical_path

HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
    "Access-Control-Expose-Headers": "Retry-After, X-Run-Id",
}
# MCP sessions use two more headers and the method DELETE.
_MCP = {
    **HEADERS,
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, Mcp-Session-Id, MCP-Protocol-Version",
    "Access-Control-Expose-Headers": "Retry-After, X-Run-Id, Mcp-Session-Id, MCP-Protocol-Version",
}
# Users replace and delete their own abilities and credentials, which takes PUT and DELETE.
_USER_DATA = {
    **HEADERS,
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-Credential-Key",
}
# Paths without CORS headers, because only pages of this server use them.
_CONSOLE = ("/assets/", "/console/")
# Seconds for which browsers cache a preflight response.
_PREFLIGHT = {"Access-Control-Max-Age": "7200"}


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_RAW, _RAW_MCP, _RAW_USER_DATA = _raw(HEADERS), _raw(_MCP), _raw(_USER_DATA)


class Cors:
    """Adds the headers to all responses except those of the web console. Wraps the whole server, so that
    error responses have the headers, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        path = canonical_path(scope["path"])
        if path.startswith(_CONSOLE):
            await self._app(scope, receive, send)
            return
        cors_headers = (
            _RAW_MCP if path.endswith("/mcp") else _RAW_USER_DATA if path.startswith("/my/") else _RAW
        )

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *cors_headers]
            await send(message)

        if scope["method"] == "OPTIONS":
            await Response(headers=_PREFLIGHT)(scope, receive, send_with_cors)
        else:
            await self._app(scope, receive, send_with_cors)
