from __future__ import annotations

import logging

import pytest
from tests.processes import PATIENCE
from tests.store.made import a_key, a_run, a_user, kept_user

from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store import later
from hutch.store.rows import now
from hutch.store.store import Store


async def test_run_comes_back_as_it_was_kept(store: Store) -> None:
    run = a_run(label="get_user", duration_ms=12.345678, outcome="timeout", details='{"calls":[]}')
    await store.runs.add_many([run])
    assert await store.runs.get(run.run_id) == run
    assert await store.runs.get("unknown") is None


async def test_runs_of_an_owner_are_listed_newest_first_page_by_page(store: Store) -> None:
    moment = now()
    runs = [a_run(run_id=f"r{number}", started_at=moment) for number in range(3)]
    runs += [a_run(run_id="new", started_at=now(plus_seconds=1))]
    await store.runs.add_many([*runs, a_run("bob")])
    assert [each.run_id for each in await store.runs.list("ada")] == ["new", "r2", "r1", "r0"]
    first = await store.runs.list("ada", 2)
    last = first[-1]
    rest = await store.runs.list("ada", 2, before=(last.started_at, last.run_id))
    assert [each.run_id for each in [*first, *rest]] == ["new", "r2", "r1", "r0"]


async def test_old_runs_are_forgotten(store: Store) -> None:
    old, new = a_run(started_at=now(plus_seconds=-100)), a_run()
    await store.runs.add_many([old, new])
    assert await store.runs.prune(now(plus_seconds=-50)) == 1
    assert await store.runs.list("ada") == [new]


async def test_run_that_is_told_twice_is_kept_once_as_it_was_first(store: Store) -> None:
    first = a_run(run_id="same")
    await store.runs.add_many([first])
    await store.runs.add_many([a_run(run_id="same", outcome="timeout"), a_run(run_id="other")])
    await store.runs.add_many([])
    assert await store.runs.get("same") == first
    assert len(await store.runs.list("ada")) == 2


async def test_runs_are_written_in_the_background(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    monkeypatch.setattr(later, "PAUSE_SECONDS", 0.0)
    run = a_run()
    store.later.run(run)
    with anyio.fail_after(PATIENCE):
        while await store.runs.get(run.run_id) is None:  # noqa: ASYNC110 - nobody is told of it
            await anyio.sleep(0.001)


async def test_what_waits_is_written_when_the_store_is_closed(store_settings: Settings) -> None:
    runs = [a_run(started_at=now(plus_seconds=number)) for number in range(2_500)]
    async with await Store.open(store_settings) as store:
        user = await kept_user(store)
        key = a_key(user)
        await store.keys.add(key)
        for run in runs:
            store.later.run(run)
        store.keys.used(key.id, now())
    async with await Store.open(store_settings) as store:
        assert len(await store.runs.list("ada", 1_000)) == 1_000
        assert await store.runs.prune(now(plus_seconds=10_000)) == len(runs)
        assert (await store.keys.list())[0].last_used_at is not None


async def test_runs_wait_while_the_database_fails_and_the_oldest_are_given_up(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        broken = True

        async def write_many(self, *arguments: object) -> int:
            if self.broken:
                raise StoreError("It is gone.")
            return await store._database.write_many(*arguments)  # type: ignore[arg-type]

    database = Failing()
    waiting = later.Later(database, most_waiting=3)  # type: ignore[arg-type]
    runs = [a_run(run_id=f"r{number}", started_at=now(plus_seconds=number)) for number in range(5)]
    for run in runs:
        waiting.run(run)
    with pytest.raises(StoreError, match="gone"):
        await waiting.flush()
    database.broken = False
    await waiting.flush()
    assert [each.run_id for each in await store.runs.list("ada")] == ["r4", "r3", "r2"]
    database.broken = True
    waiting.run(a_run())
    with caplog.at_level(logging.ERROR):
        await waiting.close()
    assert "3 records of runs could not be kept: It is gone." in caplog.text


async def test_run_with_a_name_that_no_database_keeps_is_kept_with_a_mark_in_it(store: Store) -> None:
    runs = [a_run(run_id="odd", label="a\0b\ud800"), a_run(run_id="even")]
    await store.runs.add_many(runs)
    found = await store.runs.get("odd")
    assert found is not None
    assert found.label == "a\ufffdb\ufffd"
    assert await store.runs.get("even") == runs[1]


async def test_unknown_key_that_was_used_spoils_nothing(store: Store) -> None:
    run = a_run()
    store.keys.used("removed meanwhile", now())
    store.later.run(run)
    await store.later.flush()
    assert await store.runs.get(run.run_id) == run
    assert a_user().id not in {user.id for user in await store.users.list()}
