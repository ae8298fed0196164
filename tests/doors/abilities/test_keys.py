"""Who may come to this door, and where users' keys open the others."""

from __future__ import annotations

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.doors.abilities.towns import Citizen, Town, failed
from tests.doors.clients import host
from tests.messages import execute
from tests.processes import PATIENCE
from websockets.exceptions import InvalidStatus

from hutch.store import rows

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
async def test_no_route_of_the_door_is_open_without_a_users_key(town: Town, method: str, path: str) -> None:
    for key in (None, "operator", "hk_" + "x" * 43, "hk_short", "hk_" + "x" * 5_000):
        response = await town.call(method, path, key)
        message = failed(response, 401, "UNAUTHORIZED")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "API key" in message


async def test_the_key_must_be_a_bearers(bo: Citizen) -> None:
    for value in (bo.secret, f"Basic {bo.secret}", f"Token {bo.secret}", f"Bearer {bo.secret}x"):
        response = await bo.town.call("GET", "/my/abilities", headers={"Authorization": value})
        failed(response, 401, "UNAUTHORIZED")
    headers = {"Authorization": f"bearer   {bo.secret}"}
    assert (await bo.town.call("GET", "/my/abilities", headers=headers)).status_code == 200


async def test_a_key_that_is_revoked_ends_at_once(bo: Citizen) -> None:
    assert (await bo.get("/my/abilities")).status_code == 200
    await bo.town.store.keys.revoke(bo.key.id, rows.now())
    assert "revoked" in failed(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_a_key_that_is_removed_is_unknown_at_once(bo: Citizen) -> None:
    await bo.town.store.keys.remove(bo.key.id)
    assert "not known" in failed(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_a_key_ends_when_it_expires(town: Town) -> None:
    soon = rows.now(plus_seconds=0.3)
    bo = await town.user("expires-soon", expires_at=soon)
    response = await bo.get("/my/abilities")
    while rows.now() <= soon:
        response = await bo.get("/my/abilities")
    assert "expired" in failed(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")
    assert response.status_code in (200, 401)


async def test_a_key_goes_with_its_user(bo: Citizen) -> None:
    await bo.town.store.users.remove(bo.user.id)
    failed(await bo.get("/my/abilities"), 401, "UNAUTHORIZED")


async def test_a_key_counts_only_where_its_scopes_say(town: Town) -> None:
    code = await town.user("scoped", scopes=("execbox",))
    message = failed(await code.get("/my/abilities"), 403, "FORBIDDEN")
    assert "for execbox, not for abilities" in message
    assert await ran(town, code.secret)


async def test_without_the_scope_no_other_door_opens(bo: Citizen) -> None:
    """By default a key is for abilities and mcp."""
    with pytest.raises(InvalidStatus) as refused:
        await ran(bo.town, bo.secret)
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
        assert "This key is for abilities, mcp, not for " in response.json()["error"]["message"]


async def test_what_is_the_operators_no_users_key_opens(town: Town) -> None:
    scopes = ("abilities", "execbox", "mcp", "toolscript", "tpmjs")
    bo = await town.user("everywhere", scopes=scopes)
    for method, path in (("GET", "/metrics"), ("GET", "/approvals"), ("POST", "/approvals/x")):
        assert (await bo.call(method, path, json={})).status_code == 401, path
        assert (await town.call(method, path, "operator", json={})).status_code != 401, path
    assert (await bo.get("/tools")).status_code == 200
    assert (await bo.call("POST", "/execute-tool", json={})).status_code == 400
    assert await ran(town, bo.secret)


async def test_scripts_have_no_access_even_with_a_users_key(bo: Citizen) -> None:
    response = await bo.get("/my/abilities", headers={"X-Hutch-Run": "run"})
    assert "Scripts have no access" in failed(response, 403, "FORBIDDEN")


async def test_pages_of_other_sites_and_rebound_names_are_kept_out(bo: Citizen) -> None:
    failed(await bo.get("/my/abilities", headers={"Origin": "https://evil.example"}), 403, "FORBIDDEN")
    failed(await bo.get("/my/abilities", headers={"Host": "evil.example"}), 403, "FORBIDDEN")


async def test_runs_at_other_doors_are_the_users(town: Town) -> None:
    bo = await town.user("runs-here", scopes=("execbox", "abilities"))
    assert await ran(town, bo.secret)
    while not (runs := (await bo.get("/my/runs")).json()["runs"]):
        pass
    assert [(each["door"], each["outcome"]) for each in runs] == [("execbox", "ok")]
    assert (await (await town.user("runs-nothing")).get("/my/runs")).json()["runs"] == []


async def test_a_session_at_mcp_is_of_the_key_that_began_it(bo: Citizen, ann: Citizen) -> None:
    def http(key: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)

    url = f"{bo.town.server.url}/mcp"
    async with http(bo.secret) as mine, http(ann.secret) as other, http("operator") as operator:
        async with Client(streamable_http_client(url, http_client=mine), mode="legacy") as client:
            assert (await client.list_tools()).tools == []
            # It is in no attribute of the client's that one should rely on, so another session is begun here.
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


async def ran(town: Town, key: str) -> bool:
    async with host(town.server.execbox, Authorization=f"Bearer {key}") as h:
        await h.say(execute("in", "1"))
        return bool((await h.done("in"))["ok"])


async def test_mcp_wants_a_key_that_counts(town: Town) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer hk_" + "x" * 43}) as http:
        transport = streamable_http_client(f"{town.server.url}/mcp", http_client=http)
        with pytest.raises((MCPError, httpx2.HTTPError, ExceptionGroup)):
            async with Client(transport, mode="legacy"):
                pass
