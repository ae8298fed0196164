"""`/sessions`: turns, forks, rollbacks, errors and access, against a real server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.support.openapi import OpenApiChecker
from tests.support.processes import hutch, running_server


class Api:
    """Client that checks each response against the OpenAPI document."""

    def __init__(self, client: httpx2.AsyncClient, checker: OpenApiChecker) -> None:
        self._client = client
        self._checker = checker

    async def __call__(self, method: str, path: str, status: int, body: Any = None, **headers: str) -> Any:
        response = await self._client.request(method, path, json=body, headers=headers)
        assert response.status_code == status, response.text
        if status != 204:
            template = re.sub("^/sessions/[^/]+", "/sessions/{session}", path)
            self._checker.check_response(method, template, response)
        return response.json() if response.content else None

    async def value(self, session: str, code: str) -> Any:
        body = await self("POST", f"/sessions/{session}/run", 200, {"code": code})
        assert body["ok"], body
        return body["result"]


@pytest.fixture(scope="module")
async def api(anyio_backend: object) -> AsyncIterator[Api]:
    with running_server() as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            document = (await client.get("/openapi.json")).json()
            yield Api(client, OpenApiChecker(document))


async def test_turns_forks_rollbacks_and_deletion(api: Api) -> None:
    created = await api("POST", "/sessions", 201, {"id": "over-http"})
    assert (created["id"], created["turn"]) == ("over-http", 0)
    await api.value("over-http", "let items = [1]")
    assert await api.value("over-http", "items.push(2); items") == [1, 2]
    copy = await api("POST", "/sessions/over-http/fork", 201)
    assert await api.value(copy["id"], "items.push(3); items.length") == 3
    assert (await api("POST", "/sessions/over-http/rollback", 200, {"turn": 1}))["turn"] == 1
    assert await api.value("over-http", "items") == [1]
    (variable,) = (await api("GET", "/sessions/over-http/variables", 200))["variables"]
    assert (variable["name"], variable["type"]) == ("items", "Array")
    assert {session["id"] for session in (await api("GET", "/sessions", 200))["sessions"]} >= {
        "over-http",
        copy["id"],
    }
    assert (await api("GET", "/sessions/over-http", 200))["turn"] == 2
    await api("DELETE", "/sessions/over-http", 204)
    await api("POST", "/sessions/over-http/run", 404, {"code": "1"})


async def test_users_see_only_their_own_sessions(api: Api) -> None:
    hutch("user", "add", "ann")
    key = f"Bearer {hutch('key', 'add', 'ann', '--scope', 'execbox').stdout.split()[-1]}"
    await api("POST", "/sessions", 201, {"id": "private"})
    await api("GET", "/sessions/private", 404, Authorization=key)
    await api("POST", "/sessions/private/run", 404, {"code": "1"}, Authorization=key)
    await api("DELETE", "/sessions/private", 404, Authorization=key)
    assert (await api("GET", "/sessions", 200, Authorization=key))["sessions"] == []


async def test_turn_streams_its_events_and_a_failure_is_a_result(api: Api) -> None:
    session = (await api("POST", "/sessions", 201))["id"]
    failed = await api("POST", f"/sessions/{session}/run", 200, {"code": "let x = 1;\nthrow new Error('no')"})
    assert (failed["ok"], failed["error"]["line"]) == (False, 2)
    response = await api._client.post(
        f"/sessions/{session}/run",
        json={"code": "console.log('hi'); 7"},
        headers={"Accept": "text/event-stream"},
    )
    assert "event: log\n" in response.text
    assert '"result":7' in response.text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/sessions", {"id": "a b"}, 400, "session: expected 1 to 128 letters"),
        ("/sessions", {"name": "x"}, 400, "unknown field `name`"),
        ("/sessions", {"id": "taken"}, 409, "There is a session taken already"),
        ("/sessions/taken/fork", {"id": "taken"}, 409, "There is a session taken already"),
        ("/sessions/none/fork", {}, 404, "There is no session none"),
        ("/sessions/taken/rollback", {"turn": 3}, 404, "turn: expected 0, got 3"),
        ("/sessions/taken/rollback", {"turn": -1}, 400, "turn: expected a turn"),
        ("/sessions/taken/run", {"code": "1", "engine": "deno"}, 400, "engine: expected quickjs"),
        ("/sessions/taken/run", {"code": "1", "check": True}, 400, "check: expected false"),
        ("/sessions/taken/run", {}, 400, "code: expected a string, got nothing"),
    ],
)
async def test_invalid_requests_are_refused(
    api: Api, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    await api._client.post("/sessions", json={"id": "taken"})
    assert message in (await api("POST", path, status, body))["error"]["message"]
