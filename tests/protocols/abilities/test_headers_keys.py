"""Access to each protocol with the API keys of users."""

from __future__ import annotations

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.http.execbox_client import connect_execbox
from tests.protocols.abilities.harness import AbilityServer, UserClient, error_message
from tests.support.messages import execute
from tests.support.processes import TIMEOUT_SECONDS
from websockets.exceptions import InvalidStatus

from hutch.store import models

ROUTES = [
    ("POST", "/abilities/x/execute"),
    ("POST", "/my/abilities/x/execute"),
    ("GET", "/abilities/search?q=x"),
    ("GET", "/abilities/x"),
    ("GET", "/my/abilities"),
    ("POST", "/my/abilities"),
    ("GET", "/my/abilities/x"),
    ("PUT", "/my/abilities/x"),
    ("DELETE", "/my/abilities/x"),
    ("GET", "/my/credentials"),
    ("POST", "/my/credentials"),
    ("GET", "/my/credentials/example.com"),
    ("DELETE", "/my/credentials/example.com"),
    ("GET", "/my/runs"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_requires_a_users_key(
    ability_server: AbilityServer, method: str, path: str
) -> None:
    for key in (None, "operator", "hk_" + "x" * 43, "hk_short", "hk_" + "x" * 5_000):
        response = await ability_server.call(method, path, key)
        message = error_message(response, 401, "UNAUTHORIZED")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "API key" in message


async def test_key_must_be_a_bearer_token(bo: UserClient) -> None:
    for value in (bo.secret, f"Basic {bo.secret}", f"Token {bo.secret}", f"Bearer {bo.secret}x"):
        response = await bo.ability_server.call("GET", "/my/abilities", headers={"Authorization": value})
        error_message(response, 401, "UNAUTHORIZED")
    headers = {"Authorization": f"bearer   {bo.secret}"}
    assert (await bo.ability_server.call("GET", "/my/abilities", headers=headers)).status_code == 200


async def test_revoked_key_is_refused_at_once(bo: UserClient) -> None:
    assert (await bo.get("/my/abilities")).status_code == 200
    await bo.ability_server.store.api_keys.revoke(bo.key.id, models.now())
    assert "revoked" in error_message(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_removed_key_is_unknown_at_once(bo: UserClient) -> None:
    await bo.ability_server.store.api_keys.remove(bo.key.id)
    assert "not known" in error_message(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_expired_key_is_refused(ability_server: AbilityServer) -> None:
    soon = models.now(plus_seconds=0.3)
    bo = await ability_server.user("expires-soon", expires_at=soon)
    response = await bo.get("/my/abilities")
    while models.now() <= soon:
        response = await bo.get("/my/abilities")
    assert "expired" in error_message(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")
    assert response.status_code in (200, 401)


async def test_key_is_removed_with_its_user(bo: UserClient) -> None:
    await bo.ability_server.store.users.remove(bo.user.id)
    error_message(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_key_is_valid_for_its_scopes_only(ability_server: AbilityServer) -> None:
    code = await ability_server.user("scoped", scopes=("execbox",))
    message = error_message(await code.get("/my/abilities"), 403, "FORBIDDEN")
    assert "lacks the scope abilities (it has: execbox)" in message
    assert await can_execute(ability_server, code.secret)


async def test_other_protocols_require_their_scope(bo: UserClient) -> None:
    """The key has the default scopes, which are abilities and mcp."""
    with pytest.raises(InvalidStatus) as refused:
        await can_execute(bo.ability_server, bo.secret)
    assert refused.value.response.status_code == 403
    for method, path in (
        ("GET", "/execbox"),
        ("POST", "/execute-tool"),
        ("POST", "/validate-tool"),
        ("GET", "/tools"),
        ("GET", "/status"),
        ("POST", "/tools/a__b"),
        ("GET", "/runtime/tools.ts"),
    ):
        response = await bo.call(method, path, json={})
        assert response.status_code == 403, path
        error = response.json()["error"]
        # In TPMJS, `error` is a string if the client names no protocol version.
        message = error if isinstance(error, str) else error["message"]
        assert "(it has: abilities, mcp); create a key with " in message


async def test_operator_routes_refuse_users_keys(ability_server: AbilityServer) -> None:
    scopes = ("abilities", "execbox", "mcp", "toolscript", "tpmjs")
    bo = await ability_server.user("everywhere", scopes=scopes)
    for method, path in (("GET", "/metrics"), ("GET", "/approvals"), ("POST", "/approvals/x")):
        assert (await bo.call(method, path, json={})).status_code == 401, path
        assert (await ability_server.call(method, path, "operator", json={})).status_code != 401, path
    assert (await bo.get("/tools")).status_code == 200
    assert (await bo.call("POST", "/execute-tool", json={})).status_code == 400
    assert await can_execute(ability_server, bo.secret)


async def test_scripts_have_no_access_even_with_a_users_key(bo: UserClient) -> None:
    response = await bo.get("/my/abilities", headers={"X-Hutch-Run": "run"})
    assert "Scripts have no access" in error_message(response, 403, "FORBIDDEN")


async def test_pages_of_other_sites_and_rebound_names_are_refused(bo: UserClient) -> None:
    error_message(await bo.get("/my/abilities", headers={"Origin": "https://evil.example"}), 403, "FORBIDDEN")
    error_message(await bo.get("/my/abilities", headers={"Host": "evil.example"}), 403, "FORBIDDEN")


async def test_runs_of_other_protocols_belong_to_the_user(ability_server: AbilityServer) -> None:
    bo = await ability_server.user("runs-here", scopes=("execbox", "abilities"))
    assert await can_execute(ability_server, bo.secret)
    while not (runs := (await bo.get("/my/runs")).json()["runs"]):
        pass
    assert [(run["door"], run["outcome"]) for run in runs] == [("execbox", "ok")]
    assert (await (await ability_server.user("runs-nothing")).get("/my/runs")).json()["runs"] == []


async def test_mcp_session_belongs_to_the_key_that_started_it(bo: UserClient, ann: UserClient) -> None:
    def http(key: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_SECONDS)

    url = f"{bo.ability_server.server.url}/mcp"
    async with http(bo.secret) as mine, http(ann.secret) as other, http("operator") as operator:
        async with Client(streamable_http_client(url, http_client=mine), mode="legacy") as client:
            assert (await client.list_tools()).tools == []
            # Start a second session with hand-written requests. The client's session id is not public, so the
            # test cannot reuse the client's session.
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        }
        accept = {"Accept": "application/json, text/event-stream"}
        session = (await mine.post(url, json=hello, headers=accept)).headers["mcp-session-id"]
        ask = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        headers = {**accept, "Mcp-Session-Id": session}
        assert (await other.post(url, json=ask, headers=headers)).status_code == 404
        assert (await operator.post(url, json=ask, headers=headers)).status_code == 404
        assert (await mine.delete(url, headers=headers)).status_code == 200


async def can_execute(ability_server: AbilityServer, key: str) -> bool:
    async with connect_execbox(ability_server.server.execbox, Authorization=f"Bearer {key}") as client:
        await client.send(execute("in", "1"))
        return bool((await client.done("in"))["ok"])


async def test_mcp_requires_a_valid_key(ability_server: AbilityServer) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer hk_" + "x" * 43}) as http:
        transport = streamable_http_client(f"{ability_server.server.url}/mcp", http_client=http)
        with pytest.raises((MCPError, httpx2.HTTPError, ExceptionGroup)):
            async with Client(transport, mode="legacy"):
                pass
