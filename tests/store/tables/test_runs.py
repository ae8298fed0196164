from __future__ import annotations

import itertools
import logging

import pytest
from tests.store.factories import add_runs, add_user, make_key, make_run, make_user
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.errors import StoreError, VaultError
from hutch.settings import Settings
from hutch.store import write_behind
from hutch.store.backends.base import SqlBatch, SqlStatement
from hutch.store.models import NewRun, now
from hutch.store.store import Store
from hutch.store.tables import runs
from hutch.store.tables.run_search import ALL_ENDED, Match, RunCounts, RunQuery
from hutch.store.tables.runs import RunTable


async def test_run_round_trip(store: Store) -> None:
    run = make_run(label="get_user", duration_ms=12.345678, outcome="timeout", details='{"calls":[]}')
    await add_runs(store, [run])
    assert await store.runs.get(run.run_id) == run
    assert await store.runs.get("unknown") is None


async def test_runs_of_an_owner_are_listed_newest_first_in_pages(store: Store) -> None:
    moment = now()
    runs = [make_run(run_id=f"r{number}", created_at=moment) for number in range(3)]
    runs += [make_run(run_id="new", created_at=now(plus_seconds=1))]
    await add_runs(store, [*runs, make_run("bob")])
    assert [each.run_id for each in await store.runs.list("ada")] == ["new", "r2", "r1", "r0"]
    first = await store.runs.list("ada", 2)
    last = first[-1]
    rest = await store.runs.list("ada", 2, before=(last.created_at, last.run_id))
    assert [each.run_id for each in [*first, *rest]] == ["new", "r2", "r1", "r0"]


async def test_search_distinguishes_suspended_runs_from_failed_ones(store: Store) -> None:
    await add_runs(
        store, [make_run(run_id=outcome, outcome=outcome) for outcome in ("ok", "timeout", "suspended")]
    )
    found = {"completed": "ok", "failed": "timeout", "suspended": "suspended"}
    for owner in (Match(), Match(("ada",))):
        for size in (1, 2, 3):
            for ended in itertools.combinations(ALL_ENDED, size):
                page = await store.runs.search(RunQuery(owner=owner, ended=frozenset(ended)))
                assert {run.run_id for run in page.runs} == {found[status] for status in ended}
        for text in (Match(), Match(("imeou",))):
            counts = await store.runs.count(RunQuery(owner=owner, text=text))
            others = int(not text)
            assert counts == RunCounts(others, failed=1, suspended=others, is_complete=True)


async def test_old_runs_are_pruned(store: Store) -> None:
    old, new = make_run(created_at=now(plus_seconds=-100)), make_run()
    await add_runs(store, [old, new])
    assert await store.runs.prune(now(plus_seconds=-50)) == 1
    assert await store.runs.list("ada") == [new]


async def test_runs_from_before_the_clock_jumped_back_are_kept_until_they_are_old(store: Store) -> None:
    await add_runs(store, [make_run(run_id="future", created_at=now(plus_seconds=3_600)), make_run()])
    assert await store.runs.prune(now(plus_seconds=60)) == 1
    assert [run.run_id for run in await store.runs.list("ada")] == ["future"]
    assert await store.runs.prune(now(plus_seconds=7_200)) == 1


async def test_duplicate_run_id_keeps_the_first_record(store: Store) -> None:
    first = make_run(run_id="same")
    await add_runs(store, [first])
    await add_runs(store, [make_run(run_id="same", outcome="timeout"), make_run(run_id="other")])
    await add_runs(store, [])
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
    runs = [make_run(created_at=now(plus_seconds=number)) for number in range(2_500)]
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

        async def write_batches(self, *batches: SqlBatch) -> None:
            if self.broken:
                raise StoreError("It is gone.")
            await store._database.write_batches(*batches)

    database = Failing()
    table = RunTable(database, store.runs._encryption)  # type: ignore[arg-type]
    queue = write_behind.WriteBehindQueue(database, table, max_queued=3)  # type: ignore[arg-type]
    runs = [make_run(run_id=f"r{number}", created_at=now(plus_seconds=number)) for number in range(5)]
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
    await add_runs(store, runs)
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


@repeat_on_stall
async def test_contents_are_redacted_and_encrypted_without_blocking_the_event_loop(store: Store) -> None:
    async def redact(text: str) -> str:
        return text.replace("secret", "")

    runs = [NewRun(make_run(run_id=f"r{n}"), "secret" + "x" * 120_000, redact=redact) for n in range(100)]
    await store.runs.add_new(runs[:1])
    async with LoopStalls() as stalls:
        await store.runs.add_new(runs[1:])
    assert await store.runs.content("r99") == "x" * 120_000
    stalls.assert_short()


async def test_message_and_content_are_encrypted_and_go_with_the_run(store: Store) -> None:
    run = make_run(outcome="runtime_error", error_message="no such issue", recorded="full")
    old = now(plus_seconds=-100)
    await store.runs.add_new([NewRun(run, '{"code":"1"}', ("gh.get",), ("api.test",))])
    await store.runs.add_new([NewRun(make_run(run_id="old", created_at=old), '{"code":"2"}', ("gh.get",))])
    assert await store.runs.get(run.run_id) == run
    assert await store.runs.content(run.run_id) == '{"code":"1"}'
    assert await store.runs.content("unknown") is None
    stored = await store._database.read(
        "SELECT error_message, content FROM runs JOIN run_contents USING (run_id)"
    )
    assert not [text for row in stored for text in row if text and ("issue" in text or "code" in text)]
    assert await store.runs.prune(now(plus_seconds=-50)) == 1
    left = await store._database.read("SELECT run_id FROM run_contents UNION SELECT run_id FROM run_targets")
    assert left == [(run.run_id,)]


async def test_content_moved_to_another_run_cannot_be_read(store: Store) -> None:
    await store.runs.add_new([NewRun(make_run(run_id=name), f'"{name}"') for name in ("one", "two")])
    sql = "UPDATE run_contents SET content = (SELECT content FROM run_contents WHERE run_id = 'one')"
    await store._database.write(SqlStatement(sql, {}))
    assert await store.runs.content("one") == '"one"'
    with pytest.raises(VaultError):
        await store.runs.content("two")


async def test_oldest_runs_are_deleted_to_hold_the_size_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_DELETED", 1)
    await store.runs.add_new(
        [
            NewRun(make_run(run_id=f"r{number}", created_at=now(plus_seconds=number)), "x" * 10_000)
            for number in range(5)
        ]
    )
    assert await store.runs.prune_to(1_000_000) == 0
    assert await store.runs.prune_to(35_000) == 3
    assert [run.run_id for run in await store.runs.list("ada")] == ["r4", "r3"]


async def test_records_without_a_master_key_have_no_content(
    store_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Store.open(store_settings) as store:
        run = make_run(error_message="secret", recorded="errors")
        await store.runs.add_new([NewRun(run, "{}")])
        found = await store.runs.get(run.run_id)
        assert found is not None
        assert (found.error_message, found.recorded) == (None, "metadata")
        assert await store.runs.content(run.run_id) is None
    assert "not recorded" in caplog.text


async def test_record_that_cannot_be_made_is_logged_and_the_others_are_written(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NewRun:
        raise ValueError("no record")

    store.write_behind.add_run(make_run(run_id="before"))
    store.write_behind.add_run_later(fail, 100)
    store.write_behind.add_run_later(lambda: NewRun(make_run(run_id="after")), 100)
    await store.write_behind.flush()
    assert {run.run_id for run in await store.runs.list("ada")} == {"before", "after"}
    assert store.write_behind.state.waiting == 0
    assert "no record" in caplog.text


async def test_queue_is_bounded_by_bytes_and_says_what_it_lost(store: Store) -> None:
    queue = write_behind.WriteBehindQueue(store._database, store.runs, max_bytes=25_000)
    for number in range(4):
        queue.add_run(NewRun(make_run(run_id=f"r{number}"), "x" * 10_000))
    assert (queue.state.waiting, queue.state.dropped) == (2, 2)
    await queue.close()
    assert {run.run_id for run in await store.runs.list("ada")} == {"r2", "r3"}
    assert queue.state.waiting == 0
