"""The endpoint of all protocols: methods, access, limits, errors and tracking."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import RateLimited, StoreError, Unauthorized
from hutch.http.auth import AccessControl
from hutch.http.endpoint import HttpProtocol, RequestContext, public_json_route
from hutch.http.errors import ERROR_KINDS, ApiError
from hutch.settings import Settings
from hutch.store.models import ApiKey, User, now
from hutch.vault.api_keys import Identity

USER = User(id="user_1", name="bo", data_key="", created_at=now())
SECRET = "/home/operator/key"
USER_KEY = f"hk_{'x' * 43}"


class Keys:
    """Authenticates the key of one user, which has one scope."""

    def __init__(self, scope: str = "tested") -> None:
        self._scope = scope

    async def authenticate(self, secret: str) -> Identity:
        if secret != USER_KEY:
            raise Unauthorized("unknown", "This key is unknown.")
        fields = {"name": "", "digest": "", "hint": "", "created_at": now()}
        return Identity(user=USER, key=ApiKey(id="key_1", user_id=USER.id, scopes=(self._scope,), **fields))


def render(context: RequestContext, error: ApiError) -> Response:
    body = {"kind": error.kind, "message": error.message, **error.extra}
    return JSONResponse(body, ERROR_KINDS[error.kind].status, error.headers)


class Server:
    """An application in this process with an endpoint at `/x/{name}`."""

    def __init__(self, *, keys: Keys | None = None, api_key: str | None = None, **protocol: Any) -> None:
        self.access = AccessControl(Settings(api_key=api_key), keys)
        self.contexts: list[RequestContext] = []
        self.response: ASGIApp = JSONResponse({"ok": True})
        self.error: Exception | None = None
        self.protocol = HttpProtocol(
            name="tested",
            access=self.access,
            logger=logging.getLogger("hutch.tested"),
            **{"render": render, **protocol},
        )
        app = Starlette(routes=[self.protocol.route("/x/{name}", GET=self.handle, POST=self.handle)])
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=TIMEOUT_SECONDS
        )

    async def handle(self, context: RequestContext) -> ASGIApp:
        self.contexts.append(context)
        if self.error is not None:
            raise self.error
        return self.response

    async def call(self, method: str = "GET", key: str | None = None, **headers: str) -> httpx2.Response:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self.client.request(method, "/api//x/some%20name", headers=headers)


# --- methods ---


async def test_handler_gets_the_request_and_its_owner() -> None:
    server = Server()
    assert (await server.call("POST")).json() == {"ok": True}
    [context] = server.contexts
    assert (context.request.method, context.path_param("name"), context.owner) == (
        "POST",
        "some name",
        "local",
    )
    assert dict(context.query) == {}


async def test_head_request_goes_to_the_handler_of_get() -> None:
    server = Server()
    assert (await server.call("HEAD")).status_code == 200
    assert [context.request.method for context in server.contexts] == ["HEAD"]


async def test_other_methods_are_refused_before_authentication() -> None:
    response = await Server(api_key="secret").call("DELETE")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, POST")
    assert response.json() == {
        "kind": "method_not_allowed",
        "message": "/api//x/some name does not take DELETE; it takes GET, POST",
    }


# --- access ---


async def test_refusal_is_rendered_by_the_protocol() -> None:
    server = Server(api_key="secret")
    response = await server.call()
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    body = response.json()
    assert (body["kind"], body["message"][:26]) == ("unauthorized", "Invalid or missing API key")
    assert (await server.call(key="secret")).status_code == 200
    assert [context.owner for context in server.contexts] == ["key"]


async def test_user_needs_the_scope_of_the_protocol() -> None:
    server = Server(keys=Keys())
    assert (await server.call(key=USER_KEY)).status_code == 200
    assert server.contexts[0].identity.user is USER
    response = await Server(keys=Keys("other")).call(key=USER_KEY)
    assert (response.status_code, response.json()["kind"]) == (403, "forbidden")


async def test_protocol_for_users_refuses_the_operator() -> None:
    server = Server(keys=Keys(), api_key="secret", users_only=True)
    assert (await server.call(key="secret")).status_code == 401
    assert (await server.call(key=USER_KEY)).status_code == 200


async def test_protocol_for_the_operator_refuses_users() -> None:
    server = Server(keys=Keys(), api_key="secret", operator_only=True)
    assert (await server.call(key=USER_KEY)).status_code == 401
    assert (await server.call(key="secret")).status_code == 200


@pytest.mark.parametrize("operator_only", [False, True])
@pytest.mark.parametrize(
    ("option", "header"),
    [("allow_any_origin", {"Origin": "https://other.example"}), ("allow_scripts", {"X-Hutch-Run": "r"})],
)
async def test_other_sites_and_scripts_need_permission(
    option: str, header: dict[str, str], operator_only: bool
) -> None:
    refusing = Server(operator_only=operator_only)
    response = await refusing.call(**header)
    assert (response.status_code, response.json()["kind"], refusing.contexts) == (403, "forbidden", [])
    assert (await Server(operator_only=operator_only, **{option: True}).call(**header)).status_code == 200


async def test_limits_are_checked_after_authentication_and_before_the_handler() -> None:
    checked = []

    async def check(context: RequestContext) -> None:
        checked.append(context.owner)
        raise RateLimited("Too many.", retry_after=3)

    server = Server(api_key="secret", check=check)
    assert (await server.call()).status_code == 401
    assert checked == []
    response = await server.call(key="secret")
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert (checked, server.contexts) == (["key"], [])


# --- errors ---


async def test_protocol_converts_its_own_errors_first() -> None:
    def convert(error: Exception) -> ApiError | None:
        return ApiError("conflict", "taken", field="name") if isinstance(error, LookupError) else None

    server = Server(convert=convert)
    server.error = LookupError()
    response = await server.call()
    assert (response.status_code, response.json()["field"]) == (409, "name")
    server.error = StoreError(SECRET)
    assert (await server.call()).json()["kind"] == "unavailable"


async def test_unexpected_error_is_logged_and_hidden(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.error = RuntimeError(SECRET)
    response = await server.call()
    assert (response.status_code, response.json()["kind"]) == (500, "internal")
    assert SECRET not in response.text
    assert SECRET in caplog.text


async def test_disconnect_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.error = ClientDisconnect()
    assert (await server.call()).content == b""
    assert caplog.text == ""


# --- shutdown ---


class SlowResponse:
    """A response that the server is still sending until the test releases it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started.set()
        await self.released.wait()
        await Response(b"sent")(scope, receive, send)


async def test_drain_waits_until_the_response_is_sent_and_refuses_new_requests() -> None:
    server = Server()
    slow = server.response = SlowResponse()
    calling = asyncio.create_task(server.call())
    await slow.started.wait()
    draining = asyncio.create_task(server.access.drain(TIMEOUT_SECONDS))
    await asyncio.sleep(0)
    refused = await server.call()
    assert (refused.status_code, refused.json()["kind"], refused.headers["retry-after"]) == (503, "busy", "1")
    assert not draining.done()
    slow.released.set()
    assert (await calling).content == b"sent"
    assert await draining is True


async def test_protocol_may_accept_requests_while_draining() -> None:
    server = Server(allow_while_draining=True)
    slow = server.response = SlowResponse()
    calling = asyncio.create_task(server.call())
    await slow.started.wait()
    assert await server.access.drain(TIMEOUT_SECONDS) is True
    slow.released.set()
    assert (await calling).content == b"sent"
    server.response = JSONResponse({})
    assert (await server.call()).status_code == 200


# --- public routes ---


async def test_public_route_needs_no_key_but_a_name_of_this_server() -> None:
    access = AccessControl(Settings(api_key="secret"))
    transport = httpx2.ASGITransport(Starlette(routes=[public_json_route("/doc", {"a": 1}, access)]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/api/doc")).json() == {"a": 1}
        assert (await client.get("/doc", headers={"Host": "evil.example"})).status_code == 403
