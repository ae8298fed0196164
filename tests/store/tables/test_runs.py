from __future__ import annotations

import logging

import pytest
from tests.store.factories import add_user, make_key, make_run, make_user
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store import write_behind
from hutch.store.models import now
from hutch.store.store import Store


async def test_run_round_trip(store: Store) -> None:
    run = make_run(label="get_user", duration_ms=12.345678, outcome="timeout", details='{"calls":[]}')
    await store.runs.add_many([run])
    assert await store.runs.get(run.run_id) == run
    assert await store.runs.get("unknown") is None


async def test_runs_of_an_owner_are_listed_newest_first_in_pages(store: Store) -> None:
    moment = now()
    runs = [make_run(run_id=f"r{number}", started_at=moment) for number in range(3)]
    runs += [make_run(run_id="new", started_at=now(plus_seconds=1))]
    await store.runs.add_many([*runs, make_run("bob")])
    assert [each.run_id for each in await store.runs.list("ada")] == ["new", "r2", "r1", "r0"]
    first = await store.runs.list("ada", 2)
    last = first[-1]
    rest = await store.runs.list("ada", 2, before=(last.started_at, last.run_id))
    assert [each.run_id for each in [*first, *rest]] == ["new", "r2", "r1", "r0"]


async def test_old_runs_are_pruned(store: Store) -> None:
    old, new = make_run(started_at=now(plus_seconds=-100)), make_run()
    await store.runs.add_many([old, new])
    assert await store.runs.prune(now(plus_seconds=-50)) == 1
    assert await store.runs.list("ada") == [new]


async def test_duplicate_run_id_keeps_the_first_record(store: Store) -> None:
    first = make_run(run_id="same")
    await store.runs.add_many([first])
    await store.runs.add_many([make_run(run_id="same", outcome="timeout"), make_run(run_id="other")])
    await store.runs.add_many([])
    assert await store.runs.get("same") == first
    assert len(await store.runs.list("ada")) == 2


async def test_runs_are_written_in_the_background(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    monkeypatch.setattr(write_behind, "BATCH_SECONDS", 0.0)
    run = make_run()
    store.write_behind.add_run(run)
    with anyio.fail_after(TIMEOUT_SECONDS):
        while await store.runs.get(run.run_id) is None:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(0.001)


async def test_queued_rows_are_written_when_the_store_is_closed(store_settings: Settings) -> None:
    runs = [make_run(started_at=now(plus_seconds=number)) for number in range(2_500)]
    async with await Store.open(store_settings) as store:
        user = await add_user(store)
        key = make_key(user)
        await store.api_keys.add(key)
        for run in runs:
            store.write_behind.add_run(run)
        store.api_keys.record_use(key.id, now())
    async with await Store.open(store_settings) as store:
        assert len(await store.runs.list("ada", 1_000)) == 1_000
        assert await store.runs.prune(now(plus_seconds=10_000)) == len(runs)
        assert (await store.api_keys.list())[0].last_used_at is not None


async def test_runs_stay_queued_while_the_database_fails_and_the_oldest_are_dropped(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        broken = True

        async def write_many(self, *arguments: object) -> int:
            if self.broken:
                raise StoreError("It is gone.")
            return await store._database.write_many(*arguments)  # type: ignore[arg-type]

    database = Failing()
    queue = write_behind.WriteBehindQueue(database, max_queued=3)  # type: ignore[arg-type]
    runs = [make_run(run_id=f"r{number}", started_at=now(plus_seconds=number)) for number in range(5)]
    for run in runs:
        queue.add_run(run)
    with pytest.raises(StoreError, match="gone"):
        await queue.flush()
    database.broken = False
    await queue.flush()
    assert [each.run_id for each in await store.runs.list("ada")] == ["r4", "r3", "r2"]
    database.broken = True
    queue.add_run(make_run())
    with caplog.at_level(logging.ERROR):
        await queue.close()
    assert "3 run records could not be written: It is gone." in caplog.text


async def test_unstorable_characters_of_a_run_are_replaced(store: Store) -> None:
    runs = [make_run(run_id="odd", label="a\0b\ud800"), make_run(run_id="even")]
    await store.runs.add_many(runs)
    found = await store.runs.get("odd")
    assert found is not None
    assert found.label == "a\ufffdb\ufffd"
    assert await store.runs.get("even") == runs[1]


async def test_use_of_a_removed_key_is_ignored(store: Store) -> None:
    run = make_run()
    store.api_keys.record_use("removed meanwhile", now())
    store.write_behind.add_run(run)
    await store.write_behind.flush()
    assert await store.runs.get(run.run_id) == run
    assert make_user().id not in {user.id for user in await store.users.list()}
