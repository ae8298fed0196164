"""What one hears who finds no door or may not come in: `{"success": false, "error": {code, message}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

_CODES = {
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    426: "UPGRADE_REQUIRED",
    500: "INTERNAL_ERROR",
    503: "BUSY",
}


class Refusal(NamedTuple):
    """A no, before it is put into a protocol's words."""

    status: int
    message: str
    headers: Mapping[str, str] | None = None


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says no."""
    error = {"code": _CODES.get(status, "INVALID_REQUEST"), "message": message}
    return JSONResponse({"success": False, "error": error}, status_code=status, headers=headers)


async def nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind every path that leads to no door."""
    told = f"There is nothing at {scope['path']}"
    if scope["path"] == "/":
        told += "; /health says how the server does, /info and /openapi.json what it has"
    answer = refusal(404, told)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        message = f"{request.url.path} does not take {request.method}; it takes {allowed}"
    return refusal(error.status_code, message, error.headers)


async def on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: what it was is in the log, not in the answer."""
    return refusal(500, "The server failed; its log says why")
