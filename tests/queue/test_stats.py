"""Figures of the queue in `/metrics`."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.queue.harness import QueueHarness
from tests.support.processes import TIMEOUT_SECONDS, running_server

from hutch.queue import stats
from hutch.queue.stats import QueueMonitor
from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store

ADD_MESSAGE = """
    INSERT INTO webhook_deliveries (
        id, run_id, owner, event, state, created_at, next_at, gives_up_at, attempts, held_until, history,
        message
    ) VALUES (:id, 'r', 'local', 'run.failed', :state, 0, 0, 0, 0, 0, '[]', '')
"""


async def test_runs_and_messages_are_counted_by_state(store: Store) -> None:
    async with QueueHarness(store) as harness:
        for _ in range(3):
            await harness.add()
        await harness.add(delay_ms=60_000)
        dead = await harness.add()
        age = "UPDATE queued_runs SET due_at = due_at - 90000 WHERE run_id = :run_id"
        oldest = await harness.add("another owner")
        await store._database.write(
            SqlStatement(
                "UPDATE queued_runs SET state = 'dead' WHERE run_id = :run_id", {"run_id": dead.run_id}
            ),
            SqlStatement(age, {"run_id": oldest.run_id}),
            *(
                SqlStatement(ADD_MESSAGE, {"id": id, "state": state})
                for id, state in (("a", "pending"), ("b", "failed"), ("c", "failed"), ("d", "delivered"))
            ),
        )
        found = await harness.queue.monitor.stats()
        assert found is not None
        assert found.runs == {"delayed": 1, "queued": 4, "running": 0, "dead": 1}
        assert found.webhooks == {"pending": 1, "failed": 2}
        assert 90 <= found.oldest_waiting_seconds < 90 + TIMEOUT_SECONDS


async def test_counting_is_bounded_and_cached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_COUNTED", 2)
    async with QueueHarness(store) as harness:
        for _ in range(3):
            await harness.add()
        first = await harness.queue.monitor.stats()
        assert first is not None
        assert first.runs["queued"] == 2
        assert await harness.queue.monitor.stats() is first
        monkeypatch.setattr(stats, "CACHED_SECONDS", 0)
        assert await harness.queue.monitor.stats() is not first


async def test_counting_reads_no_other_rows(store: Store) -> None:
    """The queries use the indexes on states, so that they read neither ended runs nor delivered messages."""
    explain = "EXPLAIN" if "Postgres" in type(store._database).__name__ else "EXPLAIN QUERY PLAN"
    if explain == "EXPLAIN":
        await store._database.read("SELECT set_config('enable_seqscan', 'off', false)")
    plans: list[str] = []
    scan = store._database.scan

    async def explained(sql: str, **values: object) -> object:
        plans.extend(str(row[-1]) for row in await scan(f"{explain} {sql}", **values))
        return await scan(sql, **values)

    store._database.scan = explained  # type: ignore[method-assign,assignment]
    monitor = QueueMonitor(lambda: _ready(store))
    assert await monitor.stats() is not None
    read = [line for line in plans if "queued_runs" in line or "webhook_deliveries" in line]
    assert len(read) >= 6
    # For a bitmap scan, PostgreSQL names the index only in the next line of the plan.
    by_index = ("index", "bitmap heap scan")
    assert [line for line in read if not any(word in line.lower() for word in by_index)] == []


async def _ready(store: Store) -> Store:
    return store


async def test_metrics_have_the_figures_of_the_queue(tmp_path: Path) -> None:
    environment = {"HUTCH_HOME": str(tmp_path), "HUTCH_QUICKJS_WARM": "0", "HUTCH_DENO_WARM": "0"}
    with running_server(**environment) as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:
            body = {"async": True, "kind": "code", "request": {"code": "1"}, "delay_ms": 3_600_000}
            assert (await client.post("/runs", json=body)).status_code == 202
            text = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    runs = {sample.labels["state"]: sample.value for sample in families["hutch_async_runs"].samples}
    assert runs == {"delayed": 1, "queued": 0, "running": 0, "dead": 0}
    assert families["hutch_async_oldest_waiting_seconds"].samples[0].value == 0
    assert {sample.labels["state"] for sample in families["hutch_webhook_messages"].samples} == {
        "pending",
        "failed",
    }
