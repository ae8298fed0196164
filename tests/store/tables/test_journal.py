from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.store.factories import add_runs, make_flow_run, make_run
from tests.support import databases
from tests.support.processes import wait_until

from hutch.errors import InvalidText
from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement, WriteResult
from hutch.store.models import FlowRunHead, FlowRunRow, RunRow, now
from hutch.store.store import Store
from hutch.store.tables import journal, runs
from hutch.store.tables.journal import JournalEntry
from hutch.vault.flow_keys import open_store


async def add_claimed_run(store: Store, holder: str = "me", **more: Any) -> FlowRunRow:
    row = make_flow_run(**more)
    assert await store.journal.add(row)
    found = await store.journal.claim(row, holder, now())
    assert found is not None
    return found


def record(run: FlowRunHead, outcome: str = "ok") -> RunRow:
    return make_run(run.owner, run_id=run.run_id, protocol="rep", engine="flow", outcome=outcome)


async def test_run_round_trip_and_duplicate_id(store: Store) -> None:
    row = make_flow_run(version=3, inputs='{"a":1}', options='{"user":"ada"}')
    assert await store.journal.add(row)
    assert not await store.journal.add(make_flow_run("bob", run_id=row.run_id))
    assert await store.journal.get(row.run_id) == row
    fields = {name: getattr(row, name) for name in FlowRunHead.__struct_fields__}
    assert await store.journal.head(row.run_id) == FlowRunHead(**fields)
    assert await store.journal.get("unknown") is await store.journal.head("unknown") is None


async def test_runs_are_listed_newest_first_by_owner_or_all_in_pages(store: Store) -> None:
    moment = now()
    for number in range(3):
        await store.journal.add(make_flow_run(run_id=f"r{number}", created_at=moment))
    await store.journal.add(make_flow_run("bob", run_id="b", created_at=now(plus_seconds=9)))
    listed = await store.journal.list("ada", limit=2)
    assert [each.run_id for each in listed] == ["r2", "r1"]
    rest = await store.journal.list("ada", limit=2, before=(listed[-1].created_at, listed[-1].run_id))
    assert [each.run_id for each in rest] == ["r0"]
    assert [each.run_id for each in await store.journal.list()] == ["b", "r2", "r1", "r0"]


async def test_runs_of_several_owners_are_merged(store: Store) -> None:
    for number, owner in enumerate(("local", "key", "bob", "key", "local")):
        await store.journal.add(
            make_flow_run(owner, run_id=f"r{number}", created_at=now(plus_seconds=number // 2))
        )
    both = ("key", "local")
    assert [each.run_id for each in await store.journal.list(*both)] == ["r4", "r3", "r1", "r0"]
    seen, last = list[str](), None
    while page := await store.journal.list(*both, limit=1, before=last):
        seen.append(page[0].run_id)
        last = (page[0].created_at, page[0].run_id)
    assert seen == ["r4", "r3", "r1", "r0"]


async def test_only_one_of_several_concurrent_claims_succeeds(store: Store) -> None:
    row = make_flow_run()
    await store.journal.add(row)
    found = await asyncio.gather(*(store.journal.claim(row, str(number), now()) for number in range(8)))
    [claimed] = [each for each in found if each is not None]
    assert (claimed.status, claimed.claims, claimed.started_at) == ("running", 1, claimed.seen_at)
    assert await store.journal.get(row.run_id) == claimed


async def test_only_the_holder_writes(store: Store) -> None:
    run = await add_claimed_run(store, "old")
    assert await store.journal.write(
        run.run_id, "old", [JournalEntry(1, '{"a":1}'), JournalEntry(2, "{}", "first")]
    )
    assert await store.journal.claim(run, "new", now())
    assert not await store.journal.write(
        run.run_id, "old", [JournalEntry(3, "{}"), JournalEntry(4, "{}", "second")]
    )
    assert not await store.journal.heartbeat(run.run_id, "old", now())
    assert not await store.journal.finish(run, record(run), "{}", now())
    assert not await store.journal.release(run.run_id, "old")
    assert await store.journal.heartbeat(run.run_id, "new", now())
    assert await store.journal.last_number(run.run_id) == 2
    assert await store.runs.get(run.run_id) is None


async def test_write_waits_for_a_concurrent_claim_and_then_writes_nothing(
    postgres: databases.PostgresServer, tmp_path: Path
) -> None:
    """Only PostgreSQL is tested. On PostgreSQL, a plain SELECT would still see the previous holder. SQLite
    executes writes one after the other.
    """
    settings = Settings(home=str(tmp_path), database_url=postgres.new_database())
    async with await open_store(settings) as store:
        run = await add_claimed_run(store, "old")

        def is_waiting() -> bool:
            with postgres.connect() as observer:
                sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
                return bool(observer.execute(sql, ["%INSERT INTO flow_journal%"]).fetchall())

        with postgres.connect(settings.database_url) as other:
            with other.transaction():
                other.execute("UPDATE flow_runs SET holder = 'new'")
                entries = [JournalEntry(number, "{}") for number in range(1, 4)]
                writing = asyncio.create_task(store.journal.write(run.run_id, "old", entries))
                await asyncio.to_thread(wait_until, is_waiting)
                assert not writing.done()
            assert await writing is False
        assert await store.journal.last_number(run.run_id) == 0


async def test_former_holder_writes_nothing_after_a_claim(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store, await open_store(store_settings) as other:
        for number in range(10):
            run = await add_claimed_run(store, "old", run_id=f"r{number}")

            async def write(run_id: str) -> None:
                first = 1
                while await store.journal.write(
                    run_id, "old", [JournalEntry(number, "{}") for number in range(first, first + 20)]
                ):
                    first += 20

            writing = asyncio.create_task(write(run.run_id))
            while await other.journal.last_number(run.run_id) < 20 * number:  # noqa: ASYNC110
                await asyncio.sleep(0)  # there is no event to wait for
            assert await other.journal.claim(run, "new", now())
            last = await other.journal.last_number(run.run_id)
            await writing
            # The claim ended the write, and no part of the batch was written.
            assert last == await other.journal.last_number(run.run_id)
            assert last == len(await other.journal.events(run.run_id, limit=last + 1))
            assert last % 20 == 0


async def test_events_and_results_come_back_in_order(store: Store) -> None:
    run = await add_claimed_run(store)
    for number in range(0, 1_200, 4):
        entries = [JournalEntry(number + 1, "1"), JournalEntry(number + 2, f"{number}", f"s{number % 8}")]
        entries += [JournalEntry(number + 3, "3"), JournalEntry(number + 4, "4")]
        assert await store.journal.write(run.run_id, "me", entries)
    first = await store.journal.events(run.run_id)
    assert len(first) == 500
    assert first[:3] == [JournalEntry(1, "1"), JournalEntry(3, "3"), JournalEntry(4, "4")]
    rest = await store.journal.events(run.run_id, after=first[-1].number)
    assert [each.number for each in [*first, *rest]] == [n for n in range(1, 1_201) if n % 4 != 2]
    assert dict(await store.journal.steps(run.run_id)) == {"s0": "1192", "s4": "1196"}
    assert await store.journal.last_number(run.run_id) == 1_200


async def test_finished_run_is_recorded_and_accepts_no_more_entries(store: Store) -> None:
    run = await add_claimed_run(store)
    assert await store.journal.finish(run, record(run, "2001"), '{"completed_steps":1}', now())
    found = await store.journal.get(run.run_id)
    assert found is not None
    assert (found.status, found.outcome, found.summary) == ("failed", "2001", '{"completed_steps":1}')
    assert found.is_over
    assert found.holder == ""
    assert not await store.journal.finish(found, record(run), "{}", now())
    assert not await store.journal.write(run.run_id, "me", [JournalEntry(1, "{}")])
    stored = await store.runs.get(run.run_id)
    assert stored is not None
    assert (stored.protocol, stored.outcome) == ("rep", "2001")


async def test_failed_run_can_be_retried_and_ends_again(store: Store) -> None:
    run = await add_claimed_run(store)
    await store.journal.finish(run, record(run, "2001"), "{}", now())
    failed = await store.journal.get(run.run_id)
    assert failed is not None
    again = await store.journal.claim(failed, "other", now())
    assert again is not None
    assert (again.status, again.outcome, again.summary, again.ended_at) == ("running", None, None, None)
    assert again.started_at == run.started_at
    assert await store.journal.finish(again, record(run), '{"completed_steps":2}', now())
    stored = await store.runs.get(run.run_id)
    assert stored is not None
    assert stored.outcome == "ok"


async def test_run_record_of_another_protocol_is_never_overwritten(store: Store) -> None:
    other = make_run("bob", run_id="same")
    await add_runs(store, [other])
    run = await add_claimed_run(store, run_id="same")
    assert await store.journal.finish(run, record(run), "{}", now())
    assert await store.runs.get("same") == other


async def test_starts_without_progress_are_counted(store: Store) -> None:
    run: FlowRunRow | None = await add_claimed_run(store)
    counts = []
    for number in range(5):
        assert run is not None
        counts.append(run.claims)
        if number == 2:
            await store.journal.write(
                run.run_id, "me", [JournalEntry(1, "{}"), JournalEntry(2, "{}", "first")]
            )
        run = await store.journal.claim(run, "me", now())
    assert counts == [1, 2, 3, 1, 2]


async def test_unfinished_runs_are_found_by_origin(store: Store) -> None:
    going = await add_claimed_run(store)
    waiting = make_flow_run(created_at=now(plus_seconds=-9))
    await store.journal.add(waiting)
    await store.journal.add(make_flow_run(origin="cli"))
    over = await add_claimed_run(store)
    await store.journal.finish(over, record(over), "{}", now())
    found = await store.journal.unfinished("server")
    assert [each.run_id for each in found] == [waiting.run_id, going.run_id]
    assert await store.journal.release(going.run_id, "me")
    found = await store.journal.unfinished("server")
    assert [each.holder for each in found] == ["", ""]


async def test_old_finished_runs_are_pruned_with_their_journals(store: Store) -> None:
    long_ago = now(plus_seconds=-1_000)
    over, going = await add_claimed_run(store), await add_claimed_run(store, created_at=long_ago)
    for run in (over, going):
        await store.journal.write(run.run_id, "me", [JournalEntry(1, "{}")])
    await store.journal.finish(over, record(over), "{}", long_ago)
    assert await store.journal.prune(now(plus_seconds=-500)) == 1
    assert await store.journal.get(over.run_id) is None
    assert await store.journal.events(over.run_id) == []
    assert await store.journal.events(going.run_id) == [JournalEntry(1, "{}")]


async def test_old_runs_are_pruned_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_DELETED_LINES", 10)
    monkeypatch.setattr(runs, "MAX_DELETED", 10)
    long_ago = now(plus_seconds=-1_000)
    for number in range(12):
        run = await add_claimed_run(store, run_id=f"{number:02}")
        lines = 25 if number == 5 else 4
        await store.journal.write(
            run.run_id, "me", [JournalEntry(each, "{}") for each in range(1, lines + 1)]
        )
        await store.journal.finish(run, record(run), "{}", long_ago)
    await add_runs(store, [make_run(created_at=long_ago) for _ in range(25)])
    write = store._database.write
    sizes = list[int]()

    async def counted(*statements: SqlStatement) -> list[WriteResult]:
        changed = await write(*statements)
        sizes.extend(each.row_count for each in changed)
        return changed

    monkeypatch.setattr(store._database, "write", counted)
    assert await store.journal.prune(now(plus_seconds=-500)) == 12
    # A run with more lines than fit in a batch is deleted in its own transaction.
    assert sorted(sizes) == [1, 1, 2, 2, 2, 2, 2]
    assert await store._database.read("SELECT count(*) FROM flow_journal") == [(0,)]
    sizes.clear()
    assert await store.runs.prune(now(plus_seconds=-500)) == 25
    assert sizes == [10, 10, 5]


async def test_open_approvals_are_listed_counted_and_paged(store: Store) -> None:
    run = await add_claimed_run(store)

    def event(number: int, kind: str, step: str) -> JournalEntry:
        return JournalEntry(number, f"{number}", None, kind, None if kind == "log" else step)

    entries = [event(number, "approval", f"s{number}") for number in range(1, 8)]
    entries += [event(8, "approved", "s1"), event(9, "step", "s2"), event(10, "log", "s3")]
    entries += [event(11, "step", "s4"), event(12, "approval", "s4"), event(13, "approval", "s5/inner")]
    assert await store.journal.write(run.run_id, "me", entries)
    approvals = await store.journal.open_approvals(run.run_id)
    assert [each.subject for each in approvals] == ["s3", "s5", "s6", "s7", "s4", "s5/inner"]
    assert await store.journal.count_open_approvals(run.run_id) == 6
    assert await store.journal.steps_awaiting_approval(run.run_id) == {each.subject for each in approvals}
    page = await store.journal.open_approvals(run.run_id, limit=2, offset=1)
    assert [each.subject for each in page] == ["s5", "s6"]
    assert [each.body for each in await store.journal.open_approvals(run.run_id, step="s4")] == ["12"]
    assert await store.journal.open_approvals(run.run_id, step="s1") == []
    assert await store.journal.open_approvals("other") == []


async def test_finished_steps_of_the_flow_itself_are_counted_once(store: Store) -> None:
    run = await add_claimed_run(store)
    results = [
        ("a", "failed"),
        ("a", "succeeded"),
        ("b", "failed"),
        ("c", "succeeded"),
        ("c/in", "succeeded"),
    ]
    entries = [JournalEntry(number, "{}", step, kind) for number, (step, kind) in enumerate(results, 1)]
    await store.journal.write(run.run_id, "me", [*entries, JournalEntry(9, "{}", None, "step", "d")])
    assert await store.journal.step_counts(run.run_id) == (2, 2)


async def test_special_characters_round_trip(store: Store) -> None:
    run = await add_claimed_run(store, inputs=msgspec.json.encode({"a": "\0", "b": "é\U0001f600"}).decode())
    assert run.inputs == '{"a":"\\u0000","b":"é\U0001f600"}'


@pytest.mark.parametrize("run_id", ["a\0b", "a\ud800"])
async def test_unstorable_run_id_is_rejected(store: Store, run_id: str) -> None:
    with pytest.raises(InvalidText, match="run_id"):
        await store.journal.add(make_flow_run(run_id=run_id))
    assert await store.journal.get(run_id) is None


async def test_requests_are_taken_once_and_in_order(store: Store) -> None:
    run = await add_claimed_run(store)
    for number in range(3):
        await store.journal.add_request(run.run_id, f"{number}", now(plus_seconds=number))
    assert await store.journal.take_requests("another") == []
    assert await store.journal.take_requests(run.run_id) == ["0", "1", "2"]
    assert await store.journal.take_requests(run.run_id) == []


async def test_records_of_repeated_and_restarted_steps_are_left_out(store: Store) -> None:
    run = await add_claimed_run(store)
    entries = []
    for number, step in enumerate(("a", "b", "a", "b/0", "c"), 1):
        entries.append(JournalEntry(3 * number, "{}", step, "succeeded"))
        # Give one record a subject, because records of earlier versions have subjects.
        subject = step if step == "b" else None
        entries.append(JournalEntry(3 * number + 1, f"{step}{number}", None, "record", subject))
        entries.append(JournalEntry(3 * number + 2, "{}", kind="step"))
    assert await store.journal.write(run.run_id, "me", entries)
    records = await store.journal.records(run.run_id)
    assert [each.body for each in records] == ["b2", "a3", "b/04", "c5"]
    assert [each.body for each in await store.journal.records(run.run_id, limit=2, offset=1)] == [
        "a3",
        "b/04",
    ]
    assert await store.journal.count_records(run.run_id) == 4
    head = await store.journal.head(run.run_id)
    assert head is not None
    assert await store.journal.restart(head, {"b"}, "{}", "cli")
    assert [each.body for each in await store.journal.records(run.run_id)] == ["a3", "c5"]
    left = await store.journal.events(run.run_id, with_records=True)
    assert [each.body for each in left if each.kind == "record"] == ["a1", "a3", "c5"]


async def test_restart_deletes_the_results_of_steps_and_their_inner_steps(store: Store) -> None:
    run = await add_claimed_run(store)
    entries = [
        JournalEntry(number, "{}", step, "succeeded")
        for number, step in enumerate(("a", "ab", "b", "b/0", "b/0/x", "bc"), 1)
    ]
    assert await store.journal.write(run.run_id, "me", [*entries, JournalEntry(7, "{}", kind="step")])
    stale = await store.journal.head(run.run_id)
    assert stale is not None
    assert await store.journal.finish(run, record(run), "{}", now())
    assert not await store.journal.restart(stale, {"b"}, "{}", "cli")
    assert len(await store.journal.steps(run.run_id)) == 6
    ended = await store.journal.get(run.run_id)
    assert ended is not None
    assert await store.journal.restart(ended, {"b"}, '"again"', "server")
    assert [step for step, _ in await store.journal.steps(run.run_id)] == ["a", "ab", "bc"]
    assert await store.journal.finished_steps(run.run_id) == {"a", "ab", "bc"}
    assert [(each.number, each.body) for each in await store.journal.events(run.run_id)] == [
        (7, "{}"),
        (8, '"again"'),
    ]
    pending = await store.journal.get(run.run_id)
    assert pending is not None
    assert (pending.status, pending.origin) == ("pending", "server")
    assert pending.summary is pending.started_at is pending.ended_at is None
