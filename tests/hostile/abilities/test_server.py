"""Users who attack other users or the server, with keys, schemas, sessions and bodies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.http.execbox_client import connect_execbox
from tests.protocols.abilities import harness
from tests.protocols.abilities.harness import (
    MARK,
    TOKEN,
    AbilityServer,
    UserClient,
    error_message,
    same_response,
)
from tests.support.messages import execute
from websockets.exceptions import InvalidStatus

from hutch.store import models

pytestmark = pytest.mark.anyio

RATE = 120
ID = "twitter_get_user_profile"


@pytest.fixture(scope="module")
async def ability_server(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityServer]:
    """A server that logs at debug level. At the end, checks that its log contains no secret."""
    env = {"HUTCH_API_KEY": "operator", "HUTCH_ABILITY_RATE_LIMIT": str(RATE), "HUTCH_LOG_LEVEL": "debug"}
    async with harness.start_ability_server(tmp_path_factory.mktemp("server"), **env) as server:
        yield server
        log = "".join(server.server.seen)
        assert MARK not in log
        assert TOKEN.removeprefix("Bearer ") not in log
        assert "hk_" not in log.replace("hk_…", "")
        assert "Traceback" not in log


@pytest.fixture
async def bo(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    """A new user with an ability and its credential."""
    bo = await ability_server.user(f"bo-{abs(hash(request.node.nodeid))}")
    assert (await bo.add()).status_code == 201
    await ability_server.vault.put_credential(bo.user, "127.0.0.1", "header", "Authorization", TOKEN)
    return bo


@pytest.fixture
async def eve(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    return await ability_server.user(f"eve-{abs(hash(request.node.nodeid))}")


# --- expensive schemas ---


def doubled(count: int) -> dict[str, Any]:
    steps = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{count}": {"type": "object"}}}


def unevaluated(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": True}}
    for _ in range(count):
        schema = {"anyOf": [schema], "unevaluatedProperties": False}
    return schema


def nested(count: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(count):
        value = {"c": value}
    return value


ENDLESS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "doubled": (doubled(60), {}),
    "nested doubling": ({"allOf": [{"properties": {"c": {"$ref": "#"}}}] * 2}, nested(60)),
    "unevaluated": (unevaluated(40), {"a": 1}),
    "itself": ({"$ref": "#"}, {}),
    "wide": (
        {"properties": {"a": {"items": {"allOf": [{"minimum": -at} for at in range(2_000)]}}}},
        {"a": [*range(50_000)]},
    ),
    "choices": (
        {"properties": {"a": {"items": {"enum": [{"x": at} for at in range(4_000)]}}}},
        {"a": [{"x": 3_999}] * 20_000},
    ),
    "faults": (
        {"properties": {"a": {"items": {"allOf": [{"type": "string"}] * 1_000}}}},
        {"a": [*range(1_900)]},
    ),
    "pattern": (
        {"properties": {"a": {"pattern": "(([a-z]{1,300}){1,30}|[a-y]*z)q"}}},
        {"a": "x" * 500_000},
    ),
    "pattern, small": (
        {"properties": {"a": {"pattern": "(([a-z]{1,50}){1,30}|[a-y]*z)q"}}},
        {"a": "x" * 500_000},
    ),
    "backtracking patterns": (
        {"properties": {"a": {"items": {"pattern": "^(?:(?:(a|a)(?!b))+c|.*)$"}}}},
        {"a": ["a" * 60] * 50_000},
    ),
    "names": (
        {"patternProperties": {f"(?=.*{at})(a+)+$": {} for at in range(200)}},
        {f"{'a' * 40}{at}": 1 for at in range(5_000)},
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_no_schema_blocks_the_server(eve: UserClient, name: str) -> None:
    schema, params = ENDLESS[name]
    initialized = time.monotonic()
    added = await eve.add(
        input_schema={"type": "object", **schema}, dynamic_header_keys=[], requires_dynamic_headers=False
    )
    if added.status_code == 201:
        answer = await eve.call("POST", f"/abilities/{ID}/execute", json={"params": params})
        assert "params" in error_message(answer, 400, "INVALID_REQUEST")
    else:
        assert "input_schema" in error_message(added, 400, "INVALID_REQUEST")
    assert time.monotonic() - initialized < 15


@pytest.mark.parametrize(
    "body",
    [
        b'{"params":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001,
        b'{"params":{"a":' + b"1" * 5_000_000 + b"}}",
        b'{"params":{"a":' + b"[" * 1_000_000,
        b'{"params":{"a":1e' + b"9" * 1_000_000 + b"}}",
        b'{"params":{"__proto__":{"x":1}},"params":{"username":7}}',
        b'{"params":{"username":"\\ud800"}}',
    ],
    ids=["deep", "digits", "open", "exponent", "twice", "surrogate"],
)
async def test_no_body_blocks_the_server(bo: UserClient, body: bytes) -> None:
    initialized = time.monotonic()
    answer = await bo.call(
        "POST", f"/abilities/{ID}/execute", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 404)
    assert time.monotonic() - initialized < 15


async def test_lists_use_limited_memory(eve: UserClient) -> None:
    """The twelve abilities have the maximum size, so the server splits the list into several pages."""
    code = f"export async function wrapper() {{}} // {'x' * 1_000_000}"
    for at in range(12):
        assert (await eve.add(ability_id=f"large_{at:02}", wrapper_code=code)).status_code == 201
    larger = await eve.add(ability_id="too_large", wrapper_code=code * 2)
    assert "the maximum is" in error_message(larger, 400, "INVALID_REQUEST")
    extra = {"input_schema": {"type": "object", "description": "x" * 2_000_000}}
    error_message(await eve.add(ability_id="too_large", **extra), 400, "INVALID_REQUEST")
    seen, after = [], ""
    for _ in range(12):
        page = (await eve.get("/my/abilities", params={"after": after})).json()
        seen += [each["ability_id"] for each in page["abilities"]]
        if not (after := page.get("next", "")):
            break
    assert seen == [f"large_{at:02}" for at in range(12)]


# --- other users ---


async def test_nothing_of_another_user_is_visible(bo: UserClient, eve: UserClient) -> None:
    response = await bo.call("POST", f"/abilities/{ID}/execute", json={"params": {"username": "elonmusk"}})
    assert response.json()["success"], response.text
    for method, path, body in (
        ("POST", "/abilities/{}/execute", {"params": {"username": "elonmusk"}}),
        ("POST", "/my/abilities/{}/execute", {}),
        ("GET", "/abilities/{}", None),
        ("GET", "/my/abilities/{}", None),
        ("DELETE", "/my/abilities/{}", None),
    ):
        theirs = await eve.call(method, path.format(ID), json=body)
        none = await eve.call(method, path.format(ID[:-1] + "x"), json=body)
        assert theirs.status_code == 404
        assert theirs.text.replace(ID, "")[:60] == none.text.replace(ID[:-1] + "x", "")[:60]
    for path in ("/my/abilities", "/my/credentials", "/my/runs", "/my/credentials/127.0.0.1"):
        assert (await eve.get(path)).json()["count"] == 0
    assert (await eve.get("/abilities/search", params={"q": "twitter"})).json()["count"] == 0
    for before in ("9_0", "9999_z", "' OR 1=1 --_x", "%_%"):
        assert (await eve.get("/my/runs", params={"before": before})).json()["count"] == 0
    assert (await eve.call("DELETE", "/my/credentials/127.0.0.1")).json()["deletedCount"] == 0
    assert (await bo.get("/my/credentials")).json()["count"] == 1
    # The answer does not reveal whether the other user's ability, which is named as a dependency, exists.
    await eve.add(ability_id="mine", dependency_order=[ID], dynamic_header_keys=[])
    asked = await eve.call("POST", "/abilities/mine/execute", json={"params": {"username": "a"}})
    assert error_message(asked, 400, "MISSING_DEPENDENCIES").endswith(ID)


MCP = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


async def mcp_request(
    ability_server: AbilityServer, key: str | None, method: str, session: str = "", **params: Any
) -> httpx2.Response:
    headers = {
        **MCP,
        "Mcp-Protocol-Version": "2025-06-18",
        **({"Mcp-Session-Id": session} if session else {}),
    }
    if method == "initialize":
        del headers["Mcp-Protocol-Version"]
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await ability_server.call("POST", "/mcp", key, json=message, headers=headers)


async def test_session_belongs_to_its_key_and_ends_with_it(
    ability_server: AbilityServer, bo: UserClient, eve: UserClient
) -> None:
    initialized = await mcp_request(ability_server, bo.secret, "initialize")
    session = initialized.headers["mcp-session-id"]
    listed = await mcp_request(ability_server, bo.secret, "tools/list", session)
    assert ID in listed.text
    assert MARK not in listed.text
    call = {"name": ID, "arguments": {"username": "elonmusk"}}
    other = await ability_server.user(bo.user.name)
    for key in (eve.secret, other.secret, "operator", None, bo.secret[:-1], bo.secret + "x"):
        for method, params in (("tools/list", {}), ("tools/call", call)):
            response = await mcp_request(ability_server, key, method, session, **params)
            assert response.status_code >= 400, response.text
            assert ID not in response.text
        ended = await ability_server.call("DELETE", "/mcp", key, headers={"Mcp-Session-Id": session})
        assert ended.status_code >= 400
    assert "Elon Musk" in (await mcp_request(ability_server, bo.secret, "tools/call", session, **call)).text
    await ability_server.store.api_keys.revoke(bo.key.id, models.now())
    for method, params in (("tools/list", {}), ("tools/call", call)):
        assert (await mcp_request(ability_server, bo.secret, method, session, **params)).status_code == 401


async def test_revoked_or_expired_key_is_rejected(ability_server: AbilityServer, bo: UserClient) -> None:
    late = await ability_server.user(bo.user.name, expires_at=models.now(plus_seconds=1))
    assert (await late.get("/my/runs")).status_code == 200
    await ability_server.store.api_keys.revoke(bo.key.id, models.now())
    error_message(await bo.get("/my/credentials"), 401, "UNAUTHORIZED")
    async with asyncio.timeout(5):
        while (await late.get("/my/runs")).status_code == 200:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.1)
    error_message(await late.get("/my/credentials"), 401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer hk_", "Bearer operator", "Basic hk_x", "Bearer hk_" + "%" * 43, "Bearer é\xff"],
)
async def test_invalid_key_is_rejected(ability_server: AbilityServer, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")}
    for method, path in (("GET", "/my/abilities"), ("POST", f"/abilities/{ID}/execute")):
        answer = await ability_server.client.request(
            method, ability_server.server.url + path, headers=headers
        )
        error_message(answer, 401, "UNAUTHORIZED")


async def test_key_grants_only_its_own_scopes(ability_server: AbilityServer, eve: UserClient) -> None:
    narrow = await ability_server.user(f"{eve.user.name}-narrow", scopes=("mcp",))
    assert (await narrow.get("/my/abilities")).status_code == 403
    initialized = await mcp_request(ability_server, eve.secret, "initialize")
    session = initialized.headers["mcp-session-id"]
    for name in ("run_code", "search_tools", "describe_tools"):
        response = await mcp_request(
            ability_server, eve.secret, "tools/call", session, name=name, arguments={"code": "1"}
        )
        assert "There is no tool" in response.text
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/approvals"),
        ("GET", "/servers"),
        ("POST", "/execute-tool"),
        ("POST", "/scripts"),
    ):
        assert (await eve.call(method, path, json={})).status_code in (401, 403, 404, 405), path
    with pytest.raises(InvalidStatus):
        async with connect_execbox(ability_server.server.execbox, Authorization=f"Bearer {eve.secret}"):
            pass
    for name, value in (("X-Hutch-Run", "x"), ("Host", "evil.example"), ("Origin", "https://evil.example")):
        assert (await eve.get("/my/abilities", headers={name: value})).status_code == 403


async def test_execbox_client_does_not_get_the_globals_of_wrappers(ability_server: AbilityServer) -> None:
    message = execute("1", "[typeof fetch, typeof Buffer, typeof upstream, typeof process]")
    job = {"form": "wrapper", "input": json.dumps({"payload": {}, "options": {}})}
    async with connect_execbox(ability_server.server.execbox, Authorization="Bearer operator") as other:
        for forged in ({"job": job}, {"Job": job}, {"options": {**message["options"], "job": job}}):
            await other.send({**message, **forged})
            done = await other.done("1")
            assert done["result"] == ["undefined"] * 4


async def test_every_spelling_of_a_key_counts_towards_its_rate_limit(
    ability_server: AbilityServer, eve: UserClient
) -> None:
    written = [f"Bearer {eve.secret}", f"bearer  {eve.secret}", f"BEARER   {eve.secret}"]
    asked = [("GET", "/my/runs"), ("HEAD", "/my/abilities"), ("DELETE", "/my/abilities/x")]
    initialized = await mcp_request(ability_server, eve.secret, "initialize")
    statuses = []
    for at in range(RATE + 20):
        headers = {"Authorization": written[at % 3], "X-Forwarded-For": f"10.0.0.{at}"}
        method, path = asked[at % 3]
        answer = await ability_server.client.request(
            method, ability_server.server.url + path, headers=headers
        )
        statuses.append(answer.status_code)
    assert 429 in statuses
    assert set(statuses[statuses.index(429) :]) == {429}
    # Tool calls over MCP count towards the limit of HTTP requests, even if the tool is unknown.
    for name in (ID, "unknown_0123abcd"):
        session = initialized.headers["mcp-session-id"]
        response = await mcp_request(
            ability_server, eve.secret, "tools/call", session, name=name, arguments={}
        )
        assert "requests a minute" in response.text


# --- code of an ability ---

REVEALING = {
    "syntax": "const a = ;",
    "pattern": f"return /{MARK}(/",
    "text": f"return '{MARK}",
    "itself": f"/* {MARK} */ throw wrapper",
    "its text": f"/* {MARK} */ throw Error(Function.prototype.toString.call(wrapper) + [wrapper])",
    "returned": f"/* {MARK} */ return wrapper",
    "in a response": f"/* {MARK} */ return new Response(wrapper + String(wrapper) + new Error('x').stack)",
    "logged": f"/* {MARK} */ console.log(wrapper, {{ wrapper }}, new Error('x').stack); null.x",
    "thrown": f"/* {MARK} */ null.x",
    "endless": f"/* {MARK} */ for (let a = '';;) a += 'xxxxxxxxxxxxxxxx' + a",
}


@pytest.mark.parametrize("name", REVEALING)
async def test_code_of_an_ability_is_not_revealed(eve: UserClient, name: str) -> None:
    code = f"export async function wrapper(payload) {{ {REVEALING[name]} }}"
    added = await eve.add(wrapper_code=code, dynamic_header_keys=[], requires_dynamic_headers=False)
    assert added.status_code == 201
    response = await eve.call("POST", f"/abilities/{ID}/execute", json={"params": {"username": "elonmusk"}})
    others = [await eve.get(path) for path in ("/my/runs", f"/abilities/{ID}", "/my/abilities")]
    assert all(MARK not in answer.text for answer in (added, response, *others))
    again = await eve.add(wrapper_code=code)
    assert MARK not in again.text
    assert not same_response(response, again)
