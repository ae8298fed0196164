"""Two servers with one PostgreSQL. A client follows a run at one server while the other server executes the
run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.queue.test_killed_server import add, approvals, until
from tests.support.databases import PostgresServer
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server

WAIT = "await new Promise((done) => setTimeout(done, 50000))"
ORDER = "await tools.shop.order({article: 'lamp', count: 1})"


@pytest.fixture
def environment(postgres: PostgresServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    with postgres.database_with_tables() as url:
        yield {
            "HUTCH_HOME": str(tmp_path),
            "HUTCH_DATABASE_URL": url,
            "HUTCH_QUICKJS_WARM": "1",
            "HUTCH_DENO_WARM": "0",
            "HUTCH_EXAMPLE_TOOLS": "true",
            "HUTCH_ASYNC_LEASE_SECONDS": "3",
        }


class EventReader:
    """Reads the events of a run one by one."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.seen: list[dict[str, Any]] = []
        self.ids: list[int] = []

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for line in self._lines:
                if line.startswith("id: "):
                    self.ids.append(int(line[4:]))
                if not line.startswith("data: "):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                self.seen.append(event)
                if event["type"] == kind and fields.items() <= event.items():
                    return event
        raise AssertionError(f"the stream ended before {kind}: {self.seen}")


@asynccontextmanager
async def followed(server: ServeProcess, run_id: str, **headers: str) -> AsyncIterator[EventReader]:
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client,
        client.stream("GET", f"/runs/{run_id}/events", headers=headers) as response,
    ):
        assert response.status_code == 200
        yield EventReader(response.aiter_lines())


async def test_events_arrive_live_and_cancel_works_at_another_server(environment: dict[str, str]) -> None:
    with running_server(**environment) as executing:
        code = f"console.log('first'); {ORDER}; console.log('second'); {WAIT}"
        run_id = await add(executing, code)
        async with httpx2.AsyncClient(base_url=executing.url, timeout=TIMEOUT_SECONDS) as client:
            await until(client, run_id, "running")
        with running_server(**environment) as other:
            async with followed(other, run_id) as reader, followed(other, run_id) as second:
                await reader.until("log", line="second")
                await second.until("log", line="second")
                kinds = [event["type"] for event in reader.seen]
                assert kinds == ["queued", "started", "log", "tool_call_started", "tool_call_ended", "log"]
                assert reader.ids == [1, 2, 3, 4, 5, 6]
                # A client that reconnects gets only the events after the last event that it has received.
                async with followed(other, run_id, **{"Last-Event-ID": "5"}) as again:
                    await again.until("log", line="second")
                    assert again.ids == [6]
                async with httpx2.AsyncClient(base_url=other.url, timeout=TIMEOUT_SECONDS) as client:
                    cancelled = await client.post(f"/runs/{run_id}/cancel")
                    assert cancelled.json()["status"] == "cancelling"
                    end = await reader.until("end")
                    assert (end["outcome"], reader.ids[-1]) == ("cancelled", 7)
                    await second.until("end")
                    detail = await until(client, run_id, "completed", "failed")
                    assert detail["outcome"] == "cancelled"


async def test_events_of_a_restarted_run_continue_at_another_server(environment: dict[str, str]) -> None:
    """The server that executes the run is killed. The client stays connected to another server."""
    places = {"HUTCH_MAX_ASYNC_RUNS": "1"}
    with running_server(**environment) as killed:
        run_id = await add(killed, f"console.log('here'); {WAIT}")
        async with httpx2.AsyncClient(base_url=killed.url, timeout=TIMEOUT_SECONDS) as client:
            await until(client, run_id, "running")
        with running_server(**environment, **places) as followed_at:
            blocking = await add(followed_at, WAIT, priority=1)
            async with (
                httpx2.AsyncClient(base_url=followed_at.url, timeout=TIMEOUT_SECONDS) as client,
                followed(followed_at, run_id) as reader,
            ):
                await reader.until("log", line="here")
                assert (await client.get(f"/runs/{blocking}")).json()["status"] in ("pending", "running")
                killed.process.kill()
                killed.process.wait(TIMEOUT_SECONDS)
                with running_server(**environment):
                    await reader.until("log", line="here")
                    await client.post(f"/runs/{run_id}/cancel")
                    end = await reader.until("end")
                assert end["outcome"] == "cancelled"
                kinds = [event["type"] for event in reader.seen]
                assert kinds == ["queued", "started", "log", "started", "log", "end"]
                assert reader.ids == [1, 2, 3, 4, 5, 6]


async def test_suspension_and_approval_are_seen_at_another_server(environment: dict[str, str]) -> None:
    environment["HUTCH_APPROVALS"] = "shop=ask"
    with running_server(**environment) as executing:
        pause = "await new Promise((done) => setTimeout(done, 3000))"
        run_id = await add(executing, f"{pause}; {ORDER}; console.log('bought'); return 1")
        async with httpx2.AsyncClient(base_url=executing.url, timeout=TIMEOUT_SECONDS) as client:
            await until(client, run_id, "running")
        with running_server(**environment) as other:
            async with followed(other, run_id) as reader:
                await reader.until("tool_call_started")
                await reader.until("suspended")
                (approval,) = await approvals(executing)
                url = f"/approvals/{approval['id']}"
                async with httpx2.AsyncClient(base_url=executing.url, timeout=TIMEOUT_SECONDS) as client:
                    assert (await client.post(url, json={"decision": "allow"})).status_code == 200
                assert (await reader.until("end"))["outcome"] == "suspended"
            async with followed(other, run_id, **{"Last-Event-ID": str(reader.ids[-1])}) as reader:
                assert (await reader.until("end"))["outcome"] == "ok"
