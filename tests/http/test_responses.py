"""Error responses in the common format."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hutch.http import responses


async def fail(request: Request) -> Response:
    raise RuntimeError("/home/operator/key")


@pytest.fixture
def app() -> Starlette:
    handlers: Any = {
        HTTPException: responses.on_http_exception,
        Exception: responses.on_internal_error,
    }
    web = Starlette(routes=[Route("/fail", fail, methods=["POST", "PUT"])], exception_handlers=handlers)
    web.router.default = responses.not_found_app
    return web


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "message"),
    [
        ("GET", "/x", 404, "NOT_FOUND", "There is nothing at /x"),
        ("GET", "/fail", 405, "METHOD_NOT_ALLOWED", "/fail does not take GET; it takes POST, PUT"),
        ("POST", "/fail", 500, "INTERNAL_ERROR", "The server failed; its log says why"),
    ],
)
async def test_errors_outside_of_protocols_have_the_common_format(
    app: Starlette, method: str, path: str, status: int, code: str, message: str
) -> None:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json() == {"success": False, "error": {"code": code, "message": message}}


async def test_websocket_to_an_unknown_path_gets_an_http_response() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    extensions: dict[str, Any] = {"websocket.http.response": {}}
    scope = {"type": "websocket", "path": "/x", "headers": [], "extensions": extensions}
    await responses.not_found_app(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 404)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "INVALID_REQUEST"), (418, "INVALID_REQUEST"), (426, "UPGRADE_REQUIRED"), (503, "BUSY")],
)
def test_code_depends_on_the_status(status: int, code: str) -> None:
    response = responses.error_response(status, "no", {"X-Y": "z"})
    assert (response.status_code, response.headers["x-y"]) == (status, "z")
    assert f'"code":"{code}"'.encode() in bytes(response.body)
