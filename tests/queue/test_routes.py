"""Asynchronous runs of a real server: accepted, executed, followed, cancelled and retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server

OPERATOR = "operator-key-operator-key"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    home = tmp_path_factory.mktemp("home")
    env = {"HUTCH_HOME": str(home), "HUTCH_API_KEY": OPERATOR, "HUTCH_EXAMPLE_TOOLS": "true"}
    if request.param == "postgres":
        env["HUTCH_DATABASE_URL"] = request.getfixturevalue("postgres").new_database()
    with running_server(**env) as running:
        yield running


@pytest.fixture
async def client(server: ServeProcess) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS) as client:
        yield client


async def add(client: httpx2.AsyncClient, code: str = "return 1 + 1", **options: Any) -> httpx2.Response:
    body = {"async": True, "kind": "code", "request": {"code": code}, **options}
    return await client.post("/runs", json=body)


async def ended(client: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            detail: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            if detail["status"] in ("completed", "failed"):
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
