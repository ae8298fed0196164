"""Schedules on a real store: one run for each tick, missed ticks, and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.queue.harness import QueueHarness
from tests.queue.schedules.test_cron import milliseconds
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import AlreadyExists, InvalidInput
from hutch.queue.models import QueueCaller
from hutch.queue.schedules.ticker import Ticker, due_ticks
from hutch.queue.starters import Starters
from hutch.queue.targets import StartOptions
from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import QueuedRunRow
from hutch.store.tables.queue.schedules import MissedPolicy, SavedScript, Schedule

OWNER = QueueCaller("local")


@pytest.fixture
async def harness(store: Store) -> AsyncIterator[QueueHarness]:
    async with QueueHarness(store) as harness:
        await store.saved_scripts.put(
            SavedScript(owner="local", name="report", engine="quickjs", code="return day")
        )
        yield harness


async def add(harness: QueueHarness, cron: str = "* * * * *", **options: Any) -> Schedule:
    start = StartOptions(inputs={"day": 1}, attempts=2)
    return await Starters(harness.queue).add_schedule(
        OWNER, "nightly", "script", "report", cron, options=start, **options
    )


async def set_next(store: Store, row: Schedule, seconds_ago: float) -> Schedule:
    sql = "UPDATE schedules SET next_at = clock_ms() - :age WHERE id = :id"
    await store._database.write(SqlStatement(sql, {"id": row.id, "age": int(seconds_ago * 1000)}))
    found = await store.schedules.find("local", "nightly")
    assert found is not None
    return found


async def runs(store: Store) -> list[QueuedRunRow]:
    return await store.queued_runs.list(("queued",))


async def test_tick_is_started_once_by_all_servers_together(harness: QueueHarness, store: Store) -> None:
    row = await set_next(store, await add(harness), 1)
    tickers = [Ticker(store, harness.queue.submit) for _ in range(4)]
    await asyncio.gather(*(ticker.run_due() for ticker in tickers))
    # A slow server still has the row that it read before. It tries to run the tick again.
    await tickers[0]._run_schedule(row, await store.queued_runs.now())
    (run,) = await runs(store)
    assert (run.kind, run.label, run.source, run.max_attempts) == ("code", "report", "schedule nightly", 2)
    after = await store.schedules.find("local", "nightly")
    assert after is not None
    assert after.next_at > await store.queued_runs.now()
    assert after.last_run_id == run.run_id


async def test_running_server_starts_ticks_by_itself(harness: QueueHarness, store: Store) -> None:
    await add(harness, "* * * * * *")
    await harness.queue.start()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (row := await store.schedules.find("local", "nightly")) is None or row.last_run_id is None:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.05)


def schedule(missed: MissedPolicy, next_at: str) -> Schedule:
    return Schedule(
        id="1",
        owner="local",
        name="n",
        target_kind="script",
        target="report",
        cron="0 * * * *",
        missed=missed,
        next_at=milliseconds(next_at),
    )


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", []),
        ("once", ["2027-01-01T01:00Z"]),
        ("all", ["2027-01-01T01:00Z", "2027-01-01T02:00Z", "2027-01-01T03:00Z"]),
    ],
)
def test_missed_ticks_follow_the_policy(missed: MissedPolicy, expected: list[str]) -> None:
    due, next_at = due_ticks(schedule(missed, "2027-01-01T01:00Z"), milliseconds("2027-01-01T03:30Z"))
    assert due == [milliseconds(text) for text in expected]
    assert next_at == milliseconds("2027-01-01T04:00Z")


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_tick_that_is_a_little_late_was_not_missed(missed: MissedPolicy) -> None:
    due, next_at = due_ticks(schedule(missed, "2027-01-01T03:00Z"), milliseconds("2027-01-01T03:00:30Z"))
    assert due == [milliseconds("2027-01-01T03:00Z")]
    assert next_at == milliseconds("2027-01-01T04:00Z")


def test_missed_ticks_of_a_year_are_started_in_portions() -> None:
    row = schedule("all", "2026-01-01T01:00Z")
    due, next_at = due_ticks(row, milliseconds("2027-01-01T03:30Z"))
    assert len(due) == 1_001
    assert next_at == due[-1] + 3_600_000


async def test_paused_schedule_starts_nothing_and_misses_nothing(harness: QueueHarness, store: Store) -> None:
    row = await set_next(store, await add(harness, missed="all"), 3_600)
    starters = Starters(harness.queue)
    await starters.pause_schedule(row, is_paused=True)
    await Ticker(store, harness.queue.submit).run_due()
    await starters.pause_schedule(row, is_paused=False)
    await Ticker(store, harness.queue.submit).run_due()
    assert await runs(store) == []


async def test_schedule_without_its_script_goes_on_with_the_next_tick(
    harness: QueueHarness, store: Store
) -> None:
    await set_next(store, await add(harness), 1)
    await store.saved_scripts.remove("local", "report")
    await Ticker(store, harness.queue.submit).run_due()
    assert await runs(store) == []
    assert await store.schedules.due() == []


async def test_full_queue_of_one_owner_delays_no_schedule_of_another(store: Store) -> None:
    async with QueueHarness(store, max_queued_runs_per_owner=1) as harness:
        for owner in ("a", "b"):
            await store.saved_scripts.put(SavedScript(owner=owner, name="report", engine="deno", code="1"))
        for owner, name in (("a", "first"), ("a", "second"), ("a", "third"), ("b", "first")):
            await Starters(harness.queue).add_schedule(
                QueueCaller(owner), name, "script", "report", "* * * * *"
            )
        sql = "UPDATE schedules SET next_at = clock_ms() - CASE owner WHEN 'a' THEN 2000 ELSE 1000 END"
        await store._database.write(SqlStatement(sql, {}))
        assert [row.owner for row in await store.schedules.due()] == ["a", "b", "a", "a"]
        # The first run already fills the share of owner "a" in the queue.
        assert await Ticker(store, harness.queue.submit).run_due() is False
        assert sorted(run.owner for run in await runs(store)) == ["a", "b"]
        assert [row.owner for row in await store.schedules.due()] == ["a", "a"]


async def test_schedule_does_not_run_a_script_of_an_engine_that_its_key_is_not_for(
    harness: QueueHarness, store: Store
) -> None:
    caller = QueueCaller("local", "key", ("execbox",))
    row = await Starters(harness.queue).add_schedule(caller, "nightly", "script", "report", "* * * * *")
    await set_next(store, row, 1)
    await store.saved_scripts.put(SavedScript(owner="local", name="report", engine="script", code="1"))
    await Ticker(store, harness.queue.submit).run_due()
    assert await runs(store) == []
    assert await store.schedules.due() == []


async def test_invalid_schedules_are_refused(harness: QueueHarness) -> None:
    await add(harness)
    with pytest.raises(AlreadyExists, match="nightly"):
        await add(harness)
    starters = Starters(harness.queue)
    for name, kind, target, field in (
        ("a b", "script", "report", "name"),
        ("b", "script", "none", "target"),
        ("c", "flow", "none", "target"),
    ):
        with pytest.raises(InvalidInput, match=f"^{field}"):
            await starters.add_schedule(OWNER, name, kind, target, "* * * * *")  # type: ignore[arg-type]
