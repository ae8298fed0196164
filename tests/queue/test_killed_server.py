"""Two servers with one PostgreSQL. One server is killed, and the other server takes over its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.databases import PostgresServer
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server


@pytest.fixture
def environment(postgres: PostgresServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    with postgres.database_with_tables() as url:
        yield {
            "HUTCH_HOME": str(tmp_path),
            "HUTCH_DATABASE_URL": url,
            "HUTCH_ASYNC_LEASE_SECONDS": "1.5",
            "HUTCH_QUICKJS_WARM": "1",
            "HUTCH_DENO_WARM": "0",
        }


async def until(client: httpx2.AsyncClient, run_id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            detail: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            if detail["status"] in statuses:
                return detail
            await asyncio.sleep(0.05)


async def add(server: ServeProcess, code: str, **options: Any) -> str:
    request = {"code": code, "limits": {"timeout_ms": 60_000}}
    body = {"async": True, "kind": "code", "request": request, **options}
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
        response = await client.post("/runs", json=body)
        assert response.status_code == 202, response.text
        return str(response.json()["runId"])


async def test_runs_of_a_killed_server_are_executed_by_another(environment: dict[str, str]) -> None:
    with running_server(**environment) as killed:
        sleeping = "await new Promise((done) => setTimeout(done, 2000)); return 'done'"
        started = await add(killed, sleeping)
        late = await add(killed, "return 'late'", delay_ms=2_000)
        async with httpx2.AsyncClient(base_url=killed.url, timeout=TIMEOUT_SECONDS) as client:
            await until(client, started, "running")
        killed.process.kill()
        killed.process.wait(TIMEOUT_SECONDS)
        with running_server(**environment) as other:
            async with httpx2.AsyncClient(base_url=other.url, timeout=TIMEOUT_SECONDS) as client:
                detail = await until(client, started, "completed", "failed")
                assert (detail["outcome"], detail["queue"]["attempts"]) == ("ok", 2)
                assert detail["result"]["result"] == "done"
                detail = await until(client, late, "completed", "failed")
                assert (detail["outcome"], detail["queue"]["attempts"]) == ("ok", 1)


async def test_run_that_called_a_tool_is_interrupted_when_its_server_is_killed(
    environment: dict[str, str],
) -> None:
    environment["HUTCH_EXAMPLE_TOOLS"] = "true"
    wait = "await new Promise((done) => setTimeout(done, 20000))"
    code = f"await tools.shop.order({{article: 'lamp', count: 1}}); {wait}"
    with running_server(**environment) as killed:
        run_id = await add(killed, code)
        async with httpx2.AsyncClient(base_url=killed.url, timeout=TIMEOUT_SECONDS) as client:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not (await client.get(f"/runs/{run_id}")).json()["tool_calls"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        killed.process.kill()
        killed.process.wait(TIMEOUT_SECONDS)
        with running_server(**environment) as other:
            async with httpx2.AsyncClient(base_url=other.url, timeout=TIMEOUT_SECONDS) as client:
                detail = await until(client, run_id, "completed", "failed")
                assert (detail["outcome"], detail["queue"]["attempts"]) == ("interrupted", 1)


async def test_run_that_waits_for_an_approval_goes_on_after_its_server_was_killed(
    environment: dict[str, str],
) -> None:
    environment |= {"HUTCH_EXAMPLE_TOOLS": "true", "HUTCH_APPROVALS": "shop=ask"}
    code = "const bought = await tools.shop.order({article: 'lamp', count: 2}); return bought.total > 0"
    with running_server(**environment) as killed:
        run_id = await add(killed, code)
        await approvals(killed)
        killed.process.kill()
        killed.process.wait(TIMEOUT_SECONDS)
        with running_server(**environment) as other:
            async with httpx2.AsyncClient(base_url=other.url, timeout=TIMEOUT_SECONDS) as client:
                (approval,) = await approvals(other)
                decided = await client.post(f"/approvals/{approval['id']}", json={"decision": "allow"})
                assert decided.status_code == 200, decided.text
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while (result := await client.get(f"/runs/{run_id}/result")).status_code != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                assert (result.json()["ok"], result.json()["result"]) == (True, True)
                detail = await until(client, run_id, "completed", "failed")
                assert detail["outcome"] == "ok"


async def test_script_that_waits_for_an_approval_goes_on_after_its_server_was_killed(
    environment: dict[str, str],
) -> None:
    environment |= {"HUTCH_EXAMPLE_TOOLS": "true", "HUTCH_APPROVALS": "shop=ask"}
    code = """
        console.log("begins");
        const bought = await tools.shop.order({ article: "lamp", count: 2 });
        return bought.total > 0;
    """
    with running_server(**environment) as killed:
        run_id = await add(killed, code, kind="script", request={"code": code})
        (approval,) = await approvals(killed)
        assert approval["run"] == run_id
        killed.process.kill()
        killed.process.wait(TIMEOUT_SECONDS)
        with running_server(**environment) as other:
            async with httpx2.AsyncClient(base_url=other.url, timeout=TIMEOUT_SECONDS) as client:
                (approval,) = await approvals(other)
                decided = await client.post(f"/approvals/{approval['id']}", json={"decision": "allow"})
                assert decided.status_code == 200, decided.text
                detail = await until(client, run_id, "completed", "failed")
                assert detail["outcome"] == "ok"
                result = detail["result"]
                assert (result["value"], result["exit_code"], result["stdout"]) == (True, 0, "begins\n")


async def test_script_waits_for_an_approval_and_is_retried(environment: dict[str, str]) -> None:
    """Each attempt asks again."""
    environment |= {"HUTCH_EXAMPLE_TOOLS": "true", "HUTCH_APPROVALS": "shop=ask"}
    code = 'await tools.shop.order({ article: "lamp", count: 2 }); throw new Error("no luck");'
    options = {"kind": "script", "request": {"code": code}, "attempts": 2}
    with running_server(**environment) as server:
        run_id = await add(server, code, **options)
        async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
            for _ in range(2):
                (approval,) = await approvals(server)
                await client.post(f"/approvals/{approval['id']}", json={"decision": "allow"})
            detail = await until(client, run_id, "completed", "failed")
            assert (detail["outcome"], detail["queue"]["attempts"]) == ("script_failed", 2)


async def approvals(server: ServeProcess) -> list[dict[str, Any]]:
    """Waits until a call needs a decision."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (found := (await client.get("/approvals")).json()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    return list(found)
