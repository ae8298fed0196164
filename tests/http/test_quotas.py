"""Refusals because of an exceeded quota, over each protocol of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.support.processes import ServeProcess, running_server

import hutch

OPERATOR = "operators-key"
LIMIT = "max_executions_per_day"
SCOPES = ["abilities", "execbox", "mcp", "rep", "toolscript", "tpmjs"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    with running_server(HUTCH_API_KEY=OPERATOR, HUTCH_HOME=home) as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: ServeProcess) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def key(server: ServeProcess, operator: httpx2.Client) -> dict[str, Any]:
    """A key that has used up its quota."""
    operator.post("/console/users", json={"name": "ann"})
    key: dict[str, Any] = operator.post("/console/users/ann/keys", json={"scopes": SCOPES}).json()
    saved = operator.put(f"/console/keys/{key['id']}/quota", json={LIMIT: 1})
    assert saved.json() == {LIMIT: 1}
    assert run(server, key["secret"]).json()["result"] == 2
    return key


def run(server: ServeProcess, secret: str, **headers: str) -> httpx2.Response:
    headers["Authorization"] = f"Bearer {secret}"
    return httpx2.post(f"{server.url}/run", json={"code": "1 + 1"}, headers=headers, timeout=60)


def assert_refused(response: httpx2.Response) -> None:
    assert response.status_code == 429
    assert 1 <= int(response.headers["Retry-After"]) <= 86_400
    assert LIMIT in response.text


def test_run_is_refused_with_the_name_of_the_limit(server: ServeProcess, key: dict[str, Any]) -> None:
    response = run(server, key["secret"])
    assert_refused(response)
    error = response.json()["error"]
    assert (error["code"], error["limit"]) == ("RATE_LIMITED", LIMIT)
    assert error["message"].startswith(f"The quota is used up: 1 executions a day ({LIMIT}). Try again in ")


def test_event_stream_ends_with_the_refusal(server: ServeProcess, key: dict[str, Any]) -> None:
    response = run(server, key["secret"], Accept="text/event-stream")
    assert "event: error" in response.text
    assert f'"limit":"{LIMIT}"' in response.text


def test_mcp_tool_reports_the_refusal(server: ServeProcess, key: dict[str, Any]) -> None:
    headers = {
        "Authorization": f"Bearer {key['secret']}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "run_code",
    }
    arguments = {"code": "return 1 + 1", "language": "javascript"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "run_code", "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = httpx2.post(f"{server.url}/mcp", json=body, headers=headers, timeout=60)
    assert LIMIT in response.text


def test_flow_run_is_refused(server: ServeProcess, key: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {key['secret']}"}
    flow = {"name": "one", "steps": [{"id": "a", "run": "code.run", "with": {"code": "return 1"}}]}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        registered = client.post("/flows", json=flow)
        assert registered.status_code == 201, registered.text
        assert_refused(client.post("/flows/one/runs", json={"inputs": {}}))


def test_repeated_start_of_a_flow_run_does_not_count(server: ServeProcess, operator: httpx2.Client) -> None:
    operator.post("/console/users", json={"name": "bob"})
    key = operator.post("/console/users/bob/keys", json={"scopes": SCOPES}).json()
    operator.put(f"/console/keys/{key['id']}/quota", json={LIMIT: 1})
    headers = {"Authorization": f"Bearer {key['secret']}"}
    flow = {"name": "two", "steps": [{"id": "a", "run": "wait", "with": {"seconds": 0}}]}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        assert client.post("/flows", json=flow).status_code == 201
        body = {"inputs": {}, "run_id": "once"}
        assert [client.post("/flows/two/runs", json=body).status_code for _ in range(2)] == [202, 200]
        assert_refused(client.post("/flows/two/runs", json={"inputs": {}}))


async def test_websocket_client_gets_a_result_with_the_error(
    server: ServeProcess, key: dict[str, Any]
) -> None:
    url = server.url.replace("http", "ws") + "/execbox"
    async with asyncio.timeout(60), hutch.connect(url, api_key=key["secret"]) as h:
        result = await h.run("1 + 1")
    assert result.error is not None
    assert result.error.code == "rate_limited"
    assert LIMIT in result.error.message
    assert result.error.retry_after is not None


def test_other_keys_are_not_affected(
    server: ServeProcess, operator: httpx2.Client, key: dict[str, Any]
) -> None:
    other = operator.post("/console/users/ann/keys", json={"scopes": ["execbox"]}).json()
    assert run(server, other["secret"]).json()["result"] == 2
    # A limit of the user counts the executions of all keys of the user.
    assert operator.put("/console/users/ann/quota", json={LIMIT: 2}).status_code == 200
    assert_refused(run(server, other["secret"]))
    assert operator.put("/console/users/ann/quota", json={}).status_code == 200
    assert run(server, other["secret"]).json()["result"] == 2


def test_console_shows_quota_and_usage(operator: httpx2.Client, key: dict[str, Any]) -> None:
    shown = operator.get("/console/users/ann").json()
    [mine] = [entry for entry in shown["keys"] if entry["id"] == key["id"]]
    assert mine["quota"] == {LIMIT: 1}
    assert mine["today"]["executions"] == 1
    assert shown["today"]["executions"] >= 1
    assert shown["defaults"][LIMIT] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({LIMIT: -1}, f"`{LIMIT}`: expected a whole number from 0"),
        ({LIMIT: 1.5}, f"`{LIMIT}`: expected a whole number from 0"),
        ({LIMIT: True}, f"`{LIMIT}`: expected a whole number from 0"),
        ({"max_executions": 1}, "`max_executions`: expected one of max_concurrent_executions"),
        ({"weight": 2}, "`weight`: only users have a weight"),
    ],
)
def test_invalid_quota_names_the_field(
    operator: httpx2.Client, key: dict[str, Any], body: dict[str, Any], message: str
) -> None:
    response = operator.put(f"/console/keys/{key['id']}/quota", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_refusals_are_in_the_metrics(
    server: ServeProcess, operator: httpx2.Client, key: dict[str, Any]
) -> None:
    assert_refused(run(server, key["secret"]))
    lines = operator.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("hutch_quota_refusals_total{")]
    assert line.startswith(f'hutch_quota_refusals_total{{limit="{LIMIT}"}}')
