"""Everything around an execution: addresses, the key, pages of other sites, full servers, those that stop."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
import pytest
from tests.doors.tpmjs.scripted import Door, answer, call, connected, listening, request
from tests.processes import PATIENCE

KEY = "sésame"
POSTS = ("/execute-tool", "/execute-batch", "/load-and-describe", "/validate-tool")
GETS = ("/health", "/info", "/openapi.json")


async def get(door: Door, path: str, method: str = "GET", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await door.client.request(method, f"http://127.0.0.1{path}", headers=named)


def bearer(key: str = KEY, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {key}".encode().decode("latin-1")}


# --- addresses and methods ---


@pytest.mark.parametrize("prefix", ["", "/api", "/", "//api", "/api/", "//api//"])
async def test_what_is_public_is_found_below_api_and_with_slashes_too_many(prefix: str) -> None:
    for path in GETS:
        assert (await get(Door(), prefix + path)).status_code == 200, prefix + path


@pytest.mark.parametrize(
    "path", ["//", "///", "/api", "/api/", "/execute-async", "/api/execute-async", "/api/api/health"]
)
async def test_unknown_address_is_told_in_the_shape_of_every_error(path: str) -> None:
    for method in ("GET", "POST"):
        response = await get(Door(), path, method)
        assert response.status_code == 404
        assert response.json() == {
            "success": False,
            "error": {"code": "NOT_FOUND", "message": f"There is nothing at {path}"},
        }


async def test_odd_addresses_do_no_harm_over_a_real_connection() -> None:
    async with listening(Door()) as host, connected(host) as (reader, writer):
        for path, status in (("//", 404), ("//health", 200), ("/%2Fhealth", 200), ("/api//x?y", 404)):
            writer.write(request(host, path, b"", method="GET"))
            got, headers, body = await answer(reader)
            assert (path, got, headers["access-control-allow-origin"]) == (path, status, "*")
            assert isinstance(json.loads(body), dict)


async def test_wrong_method_is_told_with_the_right_one() -> None:
    for path in (*POSTS, "/api/execute-tool", "//execute-tool"):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            response = await get(Door(), path, method)
            assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert (await get(Door(), path)).json() == {
            "success": False,
            "error": {"code": "METHOD_NOT_ALLOWED", "message": f"{path} does not take GET; it takes POST"},
        }
    for path in GETS:
        response = await get(Door(), path, "POST")
        assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


# --- the key ---


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer(scheme="Basic"), bearer(KEY + "x")])
async def test_without_the_key_nothing_is_executed(path: str, headers: dict[str, str]) -> None:
    door = Door(api_key=KEY)
    response = await door.post(path, call("echo"), **headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json() == {
        "success": False,
        "error": {"code": "UNAUTHORIZED", "message": "Invalid or missing API key"},
    }
    response = await door.post(path, call("echo"), X_TPMJS_Protocol_Version="1.1", **headers)
    assert response.json() == {
        "success": False,
        "error": "Invalid or missing API key",
        "errorStage": "request",
        "errorCode": "AUTHENTICATION_REQUIRED",
        "retryable": False,
        "executionTimeMs": 0,
    }
    assert door.tools.calls == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_with_the_key_it_is_whatever_the_case_of_the_scheme(scheme: str) -> None:
    door = Door(api_key=KEY)
    assert (await door.execute("echo", **bearer(scheme=scheme))).json()["success"] is True
    assert door.tools.calls[0].caller == "key"


async def test_key_is_asked_for_before_the_body_is_looked_at() -> None:
    door = Door(api_key=KEY)
    assert (await door.post("/execute-tool", b"{", Content_Type="text/plain")).status_code == 401
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", b"", "Content-Length: 100"))
        assert (await answer(reader))[0] == 401


async def test_health_info_document_and_options_are_open() -> None:
    door = Door(api_key=KEY)
    for path in GETS:
        assert (await get(door, path)).status_code == 200
    for path in (*GETS, *POSTS):
        assert (await get(door, path, "OPTIONS")).status_code == 200


# --- pages of other sites ---

CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
}


def has_cors(response: httpx2.Response) -> bool:
    return all(response.headers.get_list(name) == [value] for name, value in CORS.items())


@pytest.mark.parametrize("path", [*GETS, *POSTS, "/api/execute-tool", "//execute-tool", "/", "/nowhere"])
async def test_options_are_answered_everywhere(path: str) -> None:
    for origin in ({}, {"Origin": "https://app.example", "Access_Control_Request_Method": "POST"}):
        response = await get(Door(), path, "OPTIONS", **origin)
        assert (response.status_code, response.content) == (200, b"")
        assert has_cors(response)


async def test_every_answer_may_be_read_by_pages() -> None:
    door = Door(api_key=KEY, max_body_bytes=1_000, rate_limit=5)
    seen = {}
    for response in (
        await get(door, "/health"),
        await get(door, "/nowhere"),
        await get(door, "/execute-tool"),
        await door.execute("echo"),
        await door.execute("echo", **bearer()),
        await door.execute("echo", Host="evil.example", **bearer()),
        await door.execute("crash", **bearer()),
        await door.execute("busy", **bearer()),
        await door.post("/execute-tool", b" " * 1_001, **bearer()),
        await door.post("/execute-tool", b"", Content_Type="text/plain", **bearer()),
        await door.post("/execute-tool", [], **bearer()),
    ):
        assert has_cors(response), response.status_code
        seen[response.status_code] = response
    assert set(seen) == {200, 401, 403, 404, 405, 413, 415, 429, 500, 503}


async def test_fault_outside_of_the_doors_may_be_read_by_pages() -> None:
    door = Door()
    door.gate.objection = None  # type: ignore[assignment, method-assign]
    response = await door.execute("echo")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "INTERNAL_ERROR"
    assert has_cors(response)


ORIGINS = ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:81"]


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_may_execute_on_a_server_without_a_key(origin: str) -> None:
    door = Door()
    assert (await door.execute("echo", Origin=origin)).status_code == 200
    for path in POSTS:
        assert (await door.post(path, {}, Origin=origin)).status_code == 400


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_may_see_what_is_public(origin: str) -> None:
    for path in GETS:
        assert (await get(Door(), path, Origin=origin)).status_code == 200


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_needs_the_key_where_there_is_one(origin: str) -> None:
    door = Door(api_key=KEY)
    assert (await door.execute("echo", Origin=origin)).status_code == 401
    assert (await door.execute("echo", Origin=origin, **bearer())).status_code == 200


async def test_allowed_origins_are_not_asked_for_here() -> None:
    door = Door(allowed_origins=("https://app.example",))
    assert (await door.execute("echo", Origin="https://evil.example")).status_code == 200


async def test_name_that_was_rebound_to_us_is_refused_everywhere() -> None:
    door = Door()
    for path in GETS:
        response = await get(door, path, Host="evil.example")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN")
    for path in POSTS:
        response = await door.post(path, call("echo"), Host="evil.example")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN")
    response = await door.execute("echo", Host="evil.example", X_TPMJS_Protocol_Version="1.1")
    assert (response.json()["errorStage"], response.json()["errorCode"]) == ("request", "INVALID_REQUEST")
    assert door.tools.calls == []


# --- full servers ---


async def test_full_server_is_busy_for_the_next_and_not_for_the_one_after() -> None:
    door = Door(max_tools=2)
    waiting = [asyncio.create_task(door.execute("wait")) for _ in range(2)]
    await door.tools.begun_with(2)
    for path in POSTS:
        response = await door.post(path, call("echo"))
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"] == {
            "code": "BUSY",
            "message": "2 tool calls are going on already. Try again in 1 s.",
        }
    assert len(door.tools.calls) == 2
    door.tools.go.set()
    assert [(await each).json()["output"] for each in waiting] == ["went", "went"]
    assert (await door.execute("echo")).status_code == 200


async def test_rate_is_limited_and_says_when_to_come_back() -> None:
    door = Door(rate_limit=3)
    assert [(await door.execute("echo")).status_code for _ in range(3)] == [200] * 3
    for path in POSTS:
        response = await door.post(path, call("echo"))
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 20
        assert response.json()["error"]["code"] == "RATE_LIMITED"
        assert "3 tool calls a minute" in response.json()["error"]["message"]
    said = (await door.execute("echo", X_TPMJS_Protocol_Version="1.1")).json()
    assert (said["errorStage"], said["errorCode"], said["retryable"]) == (
        "executor",
        "EXECUTOR_UNAVAILABLE",
        True,
    )
    assert len(door.tools.calls) == 3
    assert (await get(door, "/health")).status_code == 200


async def test_rate_is_not_used_up_by_those_without_the_key() -> None:
    door = Door(rate_limit=1, api_key=KEY)
    for _ in range(5):
        assert (await door.execute("echo")).status_code == 401
    assert (await door.execute("echo", **bearer())).status_code == 200
    assert (await door.execute("echo", **bearer())).status_code == 429


async def test_health_answers_at_full_load() -> None:
    """While every place is taken, and large bodies are being parsed."""
    door = Door(max_tools=40)
    body = json.dumps(call("wait", {"rows": [{"a": [1, 2, 3], "b": "x" * 50}] * 100_000})).encode()
    assert len(body) > 7_000_000
    async with listening(door) as host, httpx2.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        large = [
            asyncio.create_task(client.post(f"http://{host}/execute-tool", content=body)) for _ in range(4)
        ]
        small = [
            asyncio.create_task(client.post(f"http://{host}/execute-tool", json=call("wait")))
            for _ in range(36)
        ]
        slowest = 0.0
        while len(door.tools.calls) < 40:
            began = time.monotonic()
            assert (await client.get(f"http://{host}/health")).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        # The specification has 1 s; a test machine may be slow.
        assert slowest < 5
        assert (await client.post(f"http://{host}/execute-tool", json=call("echo"))).status_code == 503
        door.tools.go.set()
        assert {(await each).status_code for each in (*large, *small)} == {200}


# --- clients that go, and a server that stops ---


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/execute-tool", call("wait")),
        ("/execute-batch", {"tools": [call("wait"), call("wait")]}),
        ("/load-and-describe", call("wait")),
    ],
)
@pytest.mark.parametrize("aborts", [False, True])
async def test_client_that_goes_ends_its_execution(
    path: str, body: object, accept: str, aborts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(max_tools=2)
    async with listening(door) as host:
        async with connected(host) as (_, writer):
            writer.write(request(host, path, json.dumps(body).encode(), f"Accept: {accept}"))
            await door.tools.begun_with(1)
            if aborts:
                writer.transport.abort()
        await asyncio.wait_for(door.tools.cancelled.wait(), PATIENCE)
        async with connected(host) as (reader, writer):
            writer.write(request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await answer(reader))[0] == 200
    assert caplog.text == ""


async def test_drain_waits_for_what_runs_and_lets_nothing_new_in() -> None:
    door = Door()
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", json.dumps(call("wait")).encode()))
        await door.tools.begun_with(1)
        draining = asyncio.create_task(door.gate.drain(PATIENCE))
        await asyncio.sleep(0)
        response = await door.execute("echo")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"] == {
            "code": "BUSY",
            "message": "The server is shutting down. Try again in 1 s.",
        }
        assert (await get(door, "/health")).json()["status"] == "draining"
        assert not draining.done()
        door.tools.go.set()
        assert json.loads((await answer(reader))[2])["output"] == "went"
        assert await draining is True


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_when_the_time_to_drain_is_over_who_waits_is_told(accept: str) -> None:
    door = Door()
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", json.dumps(call("wait")).encode(), f"Accept: {accept}"))
        await door.tools.begun_with(1)
        assert await door.gate.drain(0.01) is False
        assert door.tools.cancelled.is_set()
        status, _, body = await answer(reader)
        assert status == (503 if accept == "application/json" else 200)
        assert b"The server is shutting down" in body


async def test_drain_of_an_idle_server_does_not_wait() -> None:
    door = Door()
    assert (await door.execute("echo")).status_code == 200
    assert await door.gate.drain(PATIENCE) is True
