"""Asynchronous runs of a real server: accepted, executed, followed, cancelled and retried."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.support.flows import flow, node
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, hutch, running_server

from hutch.store.backends.sqlite import FILE

OPERATOR = "operator-key-operator-key"
ENVIRONMENT: dict[str, str] = {}
"""Home and database of the server, for commands."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    home = tmp_path_factory.mktemp("home")
    env = {"HUTCH_HOME": str(home)}
    if request.param == "postgres":
        env["HUTCH_DATABASE_URL"] = request.getfixturevalue("postgres").new_database()
    ENVIRONMENT.clear()
    ENVIRONMENT.update(env)
    with running_server(
        **env, HUTCH_API_KEY=OPERATOR, HUTCH_EXAMPLE_TOOLS="true", HUTCH_OFFLINE="true"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def user_key(server: ServeProcess) -> str:
    hutch("user", "add", "ann", env=ENVIRONMENT)
    return (
        hutch("key", "add", "ann", "--scope", "execbox", "--scope", "abilities", env=ENVIRONMENT)
        .stdout.split()[-1]
        .strip()
    )


@pytest.fixture
async def client(server: ServeProcess) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as client:
        yield client


async def add(client: httpx2.AsyncClient, code: str = "return 1 + 1", **options: Any) -> httpx2.Response:
    body = {"async": True, "kind": "code", "request": {"code": code}, **options}
    return await client.post("/runs", json=body)


async def ended(client: httpx2.AsyncClient, run_id: str, *statuses: str) -> dict[str, Any]:
    """Waits until the run has one of the statuses, by default until it has ended."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            detail: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            if detail["status"] in (statuses or ("completed", "failed")):
                return detail
            await asyncio.sleep(0.02)


async def test_accepted_run_is_executed_and_its_result_kept(client: httpx2.AsyncClient) -> None:
    response = await add(
        client,
        "console.log('hello'); return {sum: n + 1}",
        request={
            "code": "console.log('hello'); return {sum: n + 1}",
            "inputs": {"n": 41},
            "label": "sum",
        },
    )
    assert response.status_code == 202
    run_id = response.json()["runId"]
    assert response.json()["statusUrl"] == f"/runs/{run_id}" == response.headers["location"]
    detail = await ended(client, run_id)
    assert (detail["status"], detail["label"], detail["protocol"]) == ("completed", "sum", "execbox")
    assert detail["result"]["result"] == {"sum": 42}
    assert detail["queue"]["state"] == "ended"
    result = (await client.get(f"/runs/{run_id}/result")).json()
    assert (result["ok"], result["logs"], result["run_id"]) == (True, ["hello"], run_id)


async def test_result_is_there_although_the_server_died_before_it_wrote_the_record(
    client: httpx2.AsyncClient,
) -> None:
    run_id = (await add(client, "return 7")).json()["runId"]
    await ended(client, run_id)
    await client.get(f"/runs/{run_id}/result")
    delete = f"DELETE FROM runs WHERE run_id = '{run_id}'"
    if url := ENVIRONMENT.get("HUTCH_DATABASE_URL"):
        with psycopg.connect(url, autocommit=True) as database:
            database.execute(delete.encode())
    else:
        with contextlib.closing(sqlite3.connect(Path(ENVIRONMENT["HUTCH_HOME"], FILE))) as file:
            file.execute(delete)
            file.commit()
    detail = (await client.get(f"/runs/{run_id}")).json()
    assert (detail["status"], detail["result"]["result"]) == ("completed", 7)
    assert (await client.get(f"/runs/{run_id}/result")).json()["result"] == 7


async def test_idempotency_key_in_the_header_or_the_body(client: httpx2.AsyncClient) -> None:
    first = await add(client, idempotency_key="key-1")
    body = {"async": True, "kind": "code", "request": {"code": "return 1 + 1"}}
    again = await client.post("/runs", json=body, headers={"Idempotency-Key": "key-1"})
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = await add(client, "return 2", idempotency_key="key-1")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "CONFLICT")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "code", "request": {"code": "1"}}, "async: expected true"),
        ({"async": True, "kind": "dance", "request": {}}, "kind: expected one of ability, code, flow"),
        ({"async": True, "kind": "code", "request": {}}, "code: expected a string"),
        ({"async": True, "kind": "code", "request": "1"}, "request: expected an object"),
        ({"async": True, "kind": "code", "request": {"code": "1"}, "delay": 1}, "delay: unknown field"),
        ({"async": True, "kind": "code", "request": {"code": "1"}, "attempts": 0}, "attempts: expected"),
        ({"async": True, "kind": "code", "request": {"code": "1"}, "priority": 1.5}, "priority: expected"),
        ({"async": True, "kind": "code", "request": {"code": "1"}, "idempotency_key": ""}, "idempotency_key"),
        (
            {"async": True, "kind": "code", "request": {"code": "1"}, "webhook": "https://10.0.0.1/"},
            "webhook: url: 10.0.0.1 is a private address",
        ),
        (
            {"async": True, "kind": "code", "request": {"code": "1"}, "webhook": "http://example.com/"},
            "webhook: url: expected https",
        ),
        ({"async": True, "kind": "flow", "request": {"flow": "none"}}, "none"),
        ({"async": True, "kind": "script", "request": {"name": "x"}}, "request: Object missing"),
    ],
)
async def test_invalid_request_is_refused(
    client: httpx2.AsyncClient, body: dict[str, Any], field: str
) -> None:
    response = await client.post("/runs", json=body)
    assert response.status_code in (400, 404)
    assert field in response.json()["error"]["message"]


async def test_waiting_run_is_listed_followed_and_cancelled(
    client: httpx2.AsyncClient, server: ServeProcess
) -> None:
    run_id = (await add(client, delay_ms=600_000, priority=3)).json()["runId"]
    detail = (await client.get(f"/runs/{run_id}")).json()
    assert (detail["status"], detail["queue"]["state"], detail["queue"]["priority"]) == (
        "pending",
        "delayed",
        3,
    )
    listed = (await client.get("/runs", params={"status": "pending"})).json()["runs"]
    assert run_id in [run["run_id"] for run in listed]
    assert (await client.get(f"/runs/{run_id}/result")).status_code == 409
    async with client.stream("GET", f"/runs/{run_id}/events") as events:
        lines = events.aiter_lines()
        assert [await anext(lines) for _ in range(4)][-1] == "event: queued"
        cancelled = await client.post(f"/runs/{run_id}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        rest = [line async for line in lines]
    assert "event: end" in rest
    assert (await ended(client, run_id))["outcome"] == "cancelled"


async def test_events_of_a_queued_run_follow_it_to_its_end(client: httpx2.AsyncClient) -> None:
    run_id = (await add(client, "console.log('line'); return 1", delay_ms=300)).json()["runId"]
    async with client.stream("GET", f"/runs/{run_id}/events") as events:
        names = [line[7:] async for line in events.aiter_lines() if line.startswith("event: ")]
    assert names[0] == "queued"
    assert names[-1] == "end"
    assert "started" in names


async def test_running_run_is_cancelled(client: httpx2.AsyncClient) -> None:
    run_id = (await add(client, "await new Promise(() => setTimeout(() => {}, 60000))")).json()["runId"]
    await ended(client, run_id, "running")
    assert (await client.post(f"/runs/{run_id}/cancel")).json()["status"] == "cancelling"
    detail = await ended(client, run_id)
    assert (detail["outcome"], detail["queue"]["outcome"]) == ("cancelled", "cancelled")


async def test_failed_run_is_retried_and_its_record_replaced(client: httpx2.AsyncClient) -> None:
    run_id = (await add(client, "throw new Error('never')", attempts=2)).json()["runId"]
    detail = await ended(client, run_id)
    assert (detail["queue"]["state"], detail["queue"]["attempts"]) == ("dead", 2)
    assert detail["outcome"] == "runtime_error"
    runs = (await client.get("/runs", params={"text": run_id})).json()["runs"]
    assert [run["outcome"] for run in runs] == ["runtime_error"]


async def test_flow_runs_asynchronously(client: httpx2.AsyncClient) -> None:
    document = flow([node("w", "wait", seconds=0)], name="doubling", inputs_schema={"n": {"type": "int"}})
    stored = await client.post("/flows", json=document)
    assert stored.status_code in (200, 201), stored.text
    request = {"flow": "doubling", "inputs": {"n": 21}}
    accepted = await client.post("/runs", json={"async": True, "kind": "flow", "request": request})
    assert accepted.status_code == 202, accepted.text
    run_id = accepted.json()["runId"]
    detail = await ended(client, run_id)
    assert (detail["kind"], detail["outcome"]) == ("flow", "ok")


async def test_script_runs_asynchronously(client: httpx2.AsyncClient) -> None:
    code = "console.log('args', Deno.args[0]); return {n: Number(Deno.args[0]) + 1}"
    request = {"code": code, "args": ["41"], "check": False}
    accepted = await client.post("/runs", json={"async": True, "kind": "script", "request": request})
    detail = await ended(client, accepted.json()["runId"])
    assert detail["result"]["value"] == {"n": 42}
    assert detail["result"]["stdout"] == "args 41\n"


async def test_tool_is_accepted_in_the_format_of_its_protocol(client: httpx2.AsyncClient) -> None:
    call = {"packageName": "hutch-no-such-package", "version": "1.0.0", "name": "x"}
    accepted = await client.post("/execute-async", json={**call, "idempotencyKey": "tool-1"})
    assert accepted.status_code == 202
    assert accepted.json().keys() == {"success", "runId", "statusUrl"}
    detail = await ended(client, accepted.json()["runId"])
    assert (detail["protocol"], detail["outcome"]) == ("tpmjs", "package_not_found")
    assert detail["result"]["success"] is False
    refused = await client.post("/execute-async", json={**call, "name": "y", "idempotencyKey": "tool-1"})
    assert refused.status_code == 409
    invalid = await client.post("/execute-async", json={**call, "delayMs": -1})
    assert "delayMs: expected" in invalid.text
    info = (await client.get("/info")).json()["capabilities"]
    assert "async" in info["executionModes"]
    assert info["supportsCallbacks"] is True


async def test_users_see_and_start_only_what_their_keys_allow(
    server: ServeProcess, client: httpx2.AsyncClient, user_key: str
) -> None:
    headers = {"Authorization": f"Bearer {user_key}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as user:
        refused = await user.post("/runs", json={"async": True, "kind": "tool", "request": {}})
        assert refused.status_code == 403
        own = (await add(user, "return 'own'")).json()["runId"]
        assert (await ended(user, own))["result"]["result"] == "own"
        others = (await add(client, "return 'secret'")).json()["runId"]
        assert (await user.get(f"/runs/{others}")).status_code == 404
        assert (await user.post(f"/runs/{others}/cancel")).status_code == 404


async def test_ability_runs_asynchronously_for_its_user(server: ServeProcess, user_key: str) -> None:
    headers = {"Authorization": f"Bearer {user_key}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as user:
        ability = {
            "ability_id": "answer",
            "ability_name": "Answer",
            "service_name": "example.com",
            "description": "Returns a number.",
            "wrapper_code": "async function wrapper(payload) { return {answer: payload.n * 2} }",
            "input_schema": {"type": "object", "properties": {"n": {"type": "number"}}},
        }
        stored = await user.post("/my/abilities", json=ability)
        assert stored.status_code == 201, stored.text
        body = {"async": True, "kind": "ability", "request": {"ability": "answer", "params": {"n": 21}}}
        accepted = await user.post("/runs", json=body)
        assert accepted.status_code == 202, accepted.text
        detail = await ended(user, accepted.json()["runId"])
        assert (detail["protocol"], detail["outcome"]) == ("abilities", "ok")
        assert "42" in str(detail["result"])
        missing = await user.post("/runs", json={**body, "request": {"ability": "none"}})
        assert missing.status_code == 404
