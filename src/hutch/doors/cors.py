"""What lets pages of other sites read an answer; whether it is worth reading is the gate's business."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hutch.doors.paths import canonical

HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
    "Access-Control-Expose-Headers": "Retry-After",
}
# MCP's sessions have more to say to each other.
_MCP = {
    **HEADERS,
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, Mcp-Session-Id, MCP-Protocol-Version",
    "Access-Control-Expose-Headers": "Retry-After, Mcp-Session-Id, MCP-Protocol-Version",
}
# Users' own things are replaced and removed, too.
_MY = {
    **HEADERS,
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-Credential-Key",
}
# Browsers ask once in so many seconds.
_PREFLIGHT = {"Access-Control-Max-Age": "7200"}


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_RAW, _RAW_MCP, _RAW_MY = _raw(HEADERS), _raw(_MCP), _raw(_MY)


class Cors:
    """Around the whole server, so that no answer is without: not the faults' and not the wrong addresses'."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        path = canonical(scope["path"])
        ours = _RAW_MCP if path.endswith("/mcp") else _RAW_MY if path.startswith("/my/") else _RAW

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ours]
            await send(message)

        if scope["method"] == "OPTIONS":
            await Response(headers=_PREFLIGHT)(scope, receive, send_with)
        else:
            await self._app(scope, receive, send_with)
