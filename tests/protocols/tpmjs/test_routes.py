"""Paths, keys, CORS, limits and shutdown of the TPMJS routes."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
import pytest
from tests.protocols.tpmjs.harness import (
    TpmjsServer,
    call,
    encode_request,
    open_connection,
    read_response,
    serve_on_port,
)
from tests.support.processes import TIMEOUT_SECONDS

from hutch.http.auth import KEY_NEEDED

KEY = "sésame"
POSTS = ("/execute-tool", "/execute-batch", "/load-and-describe", "/validate-tool")
GETS = ("/health", "/info")


async def get(server: TpmjsServer, path: str, method: str = "GET", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await server.client.request(method, f"http://127.0.0.1{path}", headers=named)


def bearer(key: str = KEY, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {key}".encode().decode("latin-1")}


# --- paths and methods ---


@pytest.mark.parametrize("prefix", ["", "/api", "/", "//api", "/api/", "//api//"])
async def test_public_routes_are_found_below_api_and_with_repeated_slashes(prefix: str) -> None:
    for path in GETS:
        assert (await get(TpmjsServer(), prefix + path)).status_code == 200, prefix + path


@pytest.mark.parametrize(
    "path", ["//", "///", "/api", "/api/", "/execute-async", "/api/execute-async", "/api/api/health"]
)
async def test_unknown_path_returns_404_in_the_common_error_format(path: str) -> None:
    for method in ("GET", "POST"):
        response = await get(TpmjsServer(), path, method)
        assert response.status_code == 404
        assert response.json() == {
            "success": False,
            "error": {"code": "NOT_FOUND", "message": f"There is nothing at {path}"},
        }


async def test_odd_paths_work_over_a_real_connection() -> None:
    async with serve_on_port(TpmjsServer()) as host, open_connection(host) as (reader, writer):
        for path, status in (("//", 404), ("//health", 200), ("/%2Fhealth", 200), ("/api//x?y", 404)):
            writer.write(encode_request(host, path, b"", method="GET"))
            got, headers, body = await read_response(reader)
            assert (path, got, headers["access-control-allow-origin"]) == (path, status, "*")
            assert isinstance(json.loads(body), dict)


async def test_wrong_method_returns_405_with_the_allowed_one() -> None:
    for path in (*POSTS, "/api/execute-tool", "//execute-tool"):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            response = await get(TpmjsServer(), path, method)
            assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert (await get(TpmjsServer(), path)).json() == {
            "success": False,
            "error": {"code": "METHOD_NOT_ALLOWED", "message": f"{path} does not take GET; it takes POST"},
        }
    for path in GETS:
        response = await get(TpmjsServer(), path, "POST")
        assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


# --- API key ---


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer(scheme="Basic"), bearer(KEY + "x")])
async def test_nothing_is_executed_without_the_key(path: str, headers: dict[str, str]) -> None:
    server = TpmjsServer(api_key=KEY)
    response = await server.post(path, call("echo"), **headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json() == {
        "success": False,
        "error": {"code": "UNAUTHORIZED", "message": KEY_NEEDED},
    }
    response = await server.post(path, call("echo"), X_TPMJS_Protocol_Version="1.1", **headers)
    assert response.json() == {
        "success": False,
        "error": KEY_NEEDED,
        "errorStage": "request",
        "errorCode": "AUTHENTICATION_REQUIRED",
        "retryable": False,
        "executionTimeMs": 0,
    }
    assert server.tools.calls == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_scheme_of_the_key_is_case_insensitive(scheme: str) -> None:
    server = TpmjsServer(api_key=KEY)
    assert (await server.execute("echo", **bearer(scheme=scheme))).json()["success"] is True
    assert server.tools.calls[0].caller == "key"


async def test_key_is_checked_before_the_body() -> None:
    server = TpmjsServer(api_key=KEY)
    assert (await server.post("/execute-tool", b"{", Content_Type="text/plain")).status_code == 401
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(encode_request(host, "/execute-tool", b"", "Content-Length: 100"))
        assert (await read_response(reader))[0] == 401


async def test_public_routes_and_options_need_no_key() -> None:
    server = TpmjsServer(api_key=KEY)
    for path in GETS:
        assert (await get(server, path)).status_code == 200
    for path in (*GETS, *POSTS):
        assert (await get(server, path, "OPTIONS")).status_code == 200


# --- CORS ---

CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization, X-TPMJS-Protocol-Version",
}


def has_cors(response: httpx2.Response) -> bool:
    return all(response.headers.get_list(name) == [value] for name, value in CORS.items())


@pytest.mark.parametrize("path", [*GETS, *POSTS, "/api/execute-tool", "//execute-tool", "/", "/nowhere"])
async def test_options_returns_200_on_every_path(path: str) -> None:
    for origin in ({}, {"Origin": "https://app.example", "Access_Control_Request_Method": "POST"}):
        response = await get(TpmjsServer(), path, "OPTIONS", **origin)
        assert (response.status_code, response.content) == (200, b"")
        assert has_cors(response)


async def test_every_response_has_cors_headers() -> None:
    server = TpmjsServer(api_key=KEY, max_body_bytes=1_000, rate_limit=5)
    seen = {}
    for response in (
        await get(server, "/health"),
        await get(server, "/nowhere"),
        await get(server, "/execute-tool"),
        await server.execute("echo"),
        await server.execute("echo", **bearer()),
        await server.execute("echo", Host="evil.example", **bearer()),
        await server.execute("crash", **bearer()),
        await server.execute("busy", **bearer()),
        await server.post("/execute-tool", b" " * 1_001, **bearer()),
        await server.post("/execute-tool", b"", Content_Type="text/plain", **bearer()),
        await server.post("/execute-tool", [], **bearer()),
    ):
        assert has_cors(response), response.status_code
        seen[response.status_code] = response
    assert set(seen) == {200, 401, 403, 404, 405, 413, 415, 429, 500, 503}


async def test_internal_error_has_cors_headers() -> None:
    server = TpmjsServer()
    server.access.check = None  # type: ignore[assignment, method-assign]
    response = await server.execute("echo")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "INTERNAL_ERROR"
    assert has_cors(response)


ORIGINS = ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:81"]


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_may_execute_without_a_key(origin: str) -> None:
    server = TpmjsServer()
    assert (await server.execute("echo", Origin=origin)).status_code == 200
    for path in POSTS:
        assert (await server.post(path, {}, Origin=origin)).status_code == 400


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_may_use_public_routes(origin: str) -> None:
    for path in GETS:
        assert (await get(TpmjsServer(), path, Origin=origin)).status_code == 200


@pytest.mark.parametrize("origin", ORIGINS)
async def test_page_of_another_site_needs_the_key_if_there_is_one(origin: str) -> None:
    server = TpmjsServer(api_key=KEY)
    assert (await server.execute("echo", Origin=origin)).status_code == 401
    assert (await server.execute("echo", Origin=origin, **bearer())).status_code == 200


async def test_allowed_origins_do_not_apply_to_tpmjs() -> None:
    server = TpmjsServer(allowed_origins=("https://app.example",))
    assert (await server.execute("echo", Origin="https://evil.example")).status_code == 200


async def test_rebound_host_name_is_refused_everywhere() -> None:
    server = TpmjsServer()
    for path in GETS:
        response = await get(server, path, Host="evil.example")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN")
    for path in POSTS:
        response = await server.post(path, call("echo"), Host="evil.example")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN")
    response = await server.execute("echo", Host="evil.example", X_TPMJS_Protocol_Version="1.1")
    assert (response.json()["errorStage"], response.json()["errorCode"]) == ("request", "INVALID_REQUEST")
    assert server.tools.calls == []


# --- limits ---


async def test_full_server_is_busy_until_a_call_ends() -> None:
    server = TpmjsServer(max_tools=2, max_tools_per_caller=2)
    waiting = [asyncio.create_task(server.execute("wait")) for _ in range(2)]
    await server.tools.wait_started(2)
    for path in POSTS:
        response = await server.post(path, call("echo"))
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"] == {
            "code": "BUSY",
            "message": "2 tool calls are already running (max_tools). Try again in 1 s.",
        }
    assert len(server.tools.calls) == 2
    server.tools.go.set()
    assert [(await task).json()["output"] for task in waiting] == ["went", "went"]
    assert (await server.execute("echo")).status_code == 200


async def test_addresses_of_one_ipv6_network_share_a_rate_limit() -> None:
    server = TpmjsServer(rate_limit=1)
    statuses = []
    for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"):
        transport = httpx2.ASGITransport(server.app, client=(address, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            statuses.append((await client.post("/execute-tool", json=call("echo"))).status_code)
    assert statuses == [200, 429, 200]


async def test_rate_limit_returns_retry_after() -> None:
    server = TpmjsServer(rate_limit=3)
    assert [(await server.execute("echo")).status_code for _ in range(3)] == [200] * 3
    for path in POSTS:
        response = await server.post(path, call("echo"))
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 20
        assert response.json()["error"]["code"] == "RATE_LIMITED"
        assert "3 tool calls a minute" in response.json()["error"]["message"]
    data = (await server.execute("echo", X_TPMJS_Protocol_Version="1.1")).json()
    assert (data["errorStage"], data["errorCode"], data["retryable"]) == (
        "executor",
        "EXECUTOR_UNAVAILABLE",
        True,
    )
    assert len(server.tools.calls) == 3
    assert (await get(server, "/health")).status_code == 200


async def test_unauthenticated_requests_do_not_count_for_the_rate_limit() -> None:
    server = TpmjsServer(rate_limit=1, api_key=KEY)
    for _ in range(5):
        assert (await server.execute("echo")).status_code == 401
    assert (await server.execute("echo", **bearer())).status_code == 200
    assert (await server.execute("echo", **bearer())).status_code == 429


async def test_health_responds_under_full_load() -> None:
    """`/health` is requested while all slots for calls are taken and large bodies are being parsed."""
    server = TpmjsServer(max_tools=40, max_tools_per_caller=40)
    body = json.dumps(call("wait", {"rows": [{"a": [1, 2, 3], "b": "x" * 250}] * 30_000})).encode()
    assert len(body) > 7_000_000
    async with (
        serve_on_port(server) as host,
        httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client,
    ):
        large = [
            asyncio.create_task(client.post(f"http://{host}/execute-tool", content=body)) for _ in range(4)
        ]
        small = [
            asyncio.create_task(client.post(f"http://{host}/execute-tool", json=call("wait")))
            for _ in range(36)
        ]
        slowest = 0.0
        while len(server.tools.calls) < 40:
            began = time.monotonic()
            assert (await client.get(f"http://{host}/health")).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        # The specification requires an answer within 1 s. The limit here is higher, because the machine may
        # be slow.
        assert slowest < 5
        assert (await client.post(f"http://{host}/execute-tool", json=call("echo"))).status_code == 503
        server.tools.go.set()
        assert {(await task).status_code for task in (*large, *small)} == {200}


# --- disconnects and shutdown ---


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
async def test_disconnect_cancels_the_execution(
    path: str, body: object, accept: str, aborts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = TpmjsServer(max_tools=2, max_tools_per_caller=2)
    async with serve_on_port(server) as host:
        async with open_connection(host) as (_, writer):
            writer.write(encode_request(host, path, json.dumps(body).encode(), f"Accept: {accept}"))
            await server.tools.wait_started(1)
            if aborts:
                writer.transport.abort()
        await asyncio.wait_for(server.tools.cancelled.wait(), TIMEOUT_SECONDS)
        async with open_connection(host) as (reader, writer):
            writer.write(encode_request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await read_response(reader))[0] == 200
    assert caplog.text == ""


async def test_drain_waits_for_running_calls_and_refuses_new_ones() -> None:
    server = TpmjsServer()
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(encode_request(host, "/execute-tool", json.dumps(call("wait")).encode()))
        await server.tools.wait_started(1)
        draining = asyncio.create_task(server.access.drain(TIMEOUT_SECONDS))
        await asyncio.sleep(0)
        response = await server.execute("echo")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"] == {
            "code": "BUSY",
            "message": "The server is shutting down. Try again in 1 s.",
        }
        assert (await get(server, "/health")).json()["status"] == "draining"
        assert not draining.done()
        server.tools.go.set()
        assert json.loads((await read_response(reader))[2])["output"] == "went"
        assert await draining is True


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_expired_drain_returns_an_error_to_waiting_clients(accept: str) -> None:
    server = TpmjsServer()
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(
            encode_request(host, "/execute-tool", json.dumps(call("wait")).encode(), f"Accept: {accept}")
        )
        await server.tools.wait_started(1)
        assert await server.access.drain(0.01) is False
        assert server.tools.cancelled.is_set()
        status, _, body = await read_response(reader)
        assert status == (503 if accept == "application/json" else 200)
        assert b"The server is shutting down" in body


async def test_drain_of_an_idle_server_does_not_wait() -> None:
    server = TpmjsServer()
    assert (await server.execute("echo")).status_code == 200
    assert await server.access.drain(TIMEOUT_SECONDS) is True
