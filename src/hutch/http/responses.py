"""Error responses of routes that belong to no protocol: `{"success": false, "error": {code, message}}`."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from hutch.http.errors import ERROR_KINDS, INTERNAL_ERROR, method_not_allowed

_CODE_BY_STATUS = {
    **{kind.status: kind.code for kind in ERROR_KINDS.values()},
    426: "UPGRADE_REQUIRED",
    503: "BUSY",
}


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    error = {"code": _CODE_BY_STATUS.get(status, "INVALID_REQUEST"), "message": message}
    return JSONResponse({"success": False, "error": error}, status_code=status, headers=headers)


async def not_found_app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI application for unknown paths."""
    response = error_response(404, f"There is nothing at {scope['path']}")
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        message = method_not_allowed(request.url.path, request.method, allowed).message
    return error_response(error.status_code, message, error.headers)


async def on_internal_error(request: Request, error: Exception) -> Response:
    """Responds without the details of an internal error. The details are in the log."""
    return error_response(500, INTERNAL_ERROR)
