from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import databases
from tests.processes import until
from tests.store.made import a_flow_run, a_run

from hutch.errors import InvalidText
from hutch.settings import Settings
from hutch.store import journal, runs
from hutch.store.database import Changed, Statement
from hutch.store.journal import Entry
from hutch.store.rows import FlowRunHead, FlowRunRow, RunRow, now
from hutch.store.store import Store
from hutch.vault.journals import open_store


async def claimed(store: Store, holder: str = "me", **more: Any) -> FlowRunRow:
    row = a_flow_run(**more)
    assert await store.journal.add(row)
    found = await store.journal.claim(row, holder, now())
    assert found is not None
    return found


def record(run: FlowRunHead, outcome: str = "ok") -> RunRow:
    return a_run(run.owner, run_id=run.run_id, door="rep", engine="flow", outcome=outcome)


async def test_run_comes_back_as_it_was_kept_and_is_kept_once(store: Store) -> None:
    row = a_flow_run(version=3, inputs='{"a":1}', options='{"user":"ada"}')
    assert await store.journal.add(row)
    assert not await store.journal.add(a_flow_run("bob", run_id=row.run_id))
    assert await store.journal.get(row.run_id) == row
    fields = {name: getattr(row, name) for name in FlowRunHead.__struct_fields__}
    assert await store.journal.head(row.run_id) == FlowRunHead(**fields)
    assert await store.journal.get("unknown") is await store.journal.head("unknown") is None


async def test_runs_are_listed_newest_first_by_owner_or_all_page_by_page(store: Store) -> None:
    moment = now()
    for number in range(3):
        await store.journal.add(a_flow_run(run_id=f"r{number}", created_at=moment))
    await store.journal.add(a_flow_run("bob", run_id="b", created_at=now(plus_seconds=9)))
    listed = await store.journal.list("ada", limit=2)
    assert [each.run_id for each in listed] == ["r2", "r1"]
    rest = await store.journal.list("ada", limit=2, before=(listed[-1].created_at, listed[-1].run_id))
    assert [each.run_id for each in rest] == ["r0"]
    assert [each.run_id for each in await store.journal.list()] == ["b", "r2", "r1", "r0"]


async def test_runs_of_several_owners_are_one_list(store: Store) -> None:
    for number, owner in enumerate(("local", "key", "bob", "key", "local")):
        await store.journal.add(
            a_flow_run(owner, run_id=f"r{number}", created_at=now(plus_seconds=number // 2))
        )
    both = ("key", "local")
    assert [each.run_id for each in await store.journal.list(*both)] == ["r4", "r3", "r1", "r0"]
    seen, last = list[str](), None
    while page := await store.journal.list(*both, limit=1, before=last):
        seen.append(page[0].run_id)
        last = (page[0].created_at, page[0].run_id)
    assert seen == ["r4", "r3", "r1", "r0"]


async def test_one_of_many_who_claim_a_run_gets_it(store: Store) -> None:
    row = a_flow_run()
    await store.journal.add(row)
    found = await asyncio.gather(*(store.journal.claim(row, str(number), now()) for number in range(8)))
    [mine] = [each for each in found if each is not None]
    assert (mine.status, mine.claims, mine.started_at) == ("running", 1, mine.seen_at)
    assert await store.journal.get(row.run_id) == mine


async def test_only_the_holder_writes(store: Store) -> None:
    run = await claimed(store, "old")
    assert await store.journal.write(run.run_id, "old", [Entry(1, '{"a":1}'), Entry(2, "{}", "first")])
    assert await store.journal.claim(run, "new", now())
    assert not await store.journal.write(run.run_id, "old", [Entry(3, "{}"), Entry(4, "{}", "second")])
    assert not await store.journal.beat(run.run_id, "old", now())
    assert not await store.journal.finish(run, record(run), "{}", now())
    assert not await store.journal.let_go(run.run_id, "old")
    assert await store.journal.beat(run.run_id, "new", now())
    assert await store.journal.last(run.run_id) == 2
    assert await store.runs.get(run.run_id) is None


async def test_who_writes_waits_for_a_claim_that_is_under_way_and_then_writes_nothing(
    postgres: databases.Server, tmp_path: Path
) -> None:
    """With SQLite one always waits for the other; PostgreSQL would show the holder of before."""
    settings = Settings(home=str(tmp_path), database_url=postgres.new_database())
    async with await open_store(settings) as store:
        run = await claimed(store, "old")

        def is_waiting() -> bool:
            with postgres.connect() as looking:
                sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
                return bool(looking.execute(sql, ["%INSERT INTO flow_journal%"]).fetchall())

        with postgres.connect(settings.database_url) as other:
            with other.transaction():
                other.execute("UPDATE flow_runs SET holder = 'new'")
                entries = [Entry(number, "{}") for number in range(1, 4)]
                writing = asyncio.create_task(store.journal.write(run.run_id, "old", entries))
                await asyncio.to_thread(until, is_waiting)
                assert not writing.done()
            assert await writing is False
        assert await store.journal.last(run.run_id) == 0


async def test_when_a_run_is_claimed_nothing_more_is_written_by_who_had_it(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store, await open_store(store_settings) as other:
        for number in range(10):
            run = await claimed(store, "old", run_id=f"r{number}")

            async def write(run_id: str) -> None:
                first = 1
                while await store.journal.write(
                    run_id, "old", [Entry(number, "{}") for number in range(first, first + 20)]
                ):
                    first += 20

            writing = asyncio.create_task(write(run.run_id))
            while await other.journal.last(run.run_id) < 20 * number:  # noqa: ASYNC110
                await asyncio.sleep(0)  # nobody tells of it
            assert await other.journal.claim(run, "new", now())
            last = await other.journal.last(run.run_id)
            await writing
            # Nor half of what was written at once.
            assert last == await other.journal.last(run.run_id)
            assert last == len(await other.journal.events(run.run_id, limit=last + 1))
            assert last % 20 == 0


async def test_events_and_results_come_back_in_order(store: Store) -> None:
    run = await claimed(store)
    for number in range(0, 1_200, 4):
        entries = [Entry(number + 1, "1"), Entry(number + 2, f"{number}", f"s{number % 8}")]
        entries += [Entry(number + 3, "3"), Entry(number + 4, "4")]
        assert await store.journal.write(run.run_id, "me", entries)
    first = await store.journal.events(run.run_id)
    assert len(first) == 500
    assert first[:3] == [Entry(1, "1"), Entry(3, "3"), Entry(4, "4")]
    rest = await store.journal.events(run.run_id, after=first[-1].number)
    assert [each.number for each in [*first, *rest]] == [n for n in range(1, 1_201) if n % 4 != 2]
    assert dict(await store.journal.steps(run.run_id)) == {"s0": "1192", "s4": "1196"}
    assert await store.journal.last(run.run_id) == 1_200


async def test_end_is_kept_with_the_runs_of_all_doors_and_nothing_is_written_after_it(store: Store) -> None:
    run = await claimed(store)
    assert await store.journal.finish(run, record(run, "2001"), '{"completed_steps":1}', now())
    found = await store.journal.get(run.run_id)
    assert found is not None
    assert (found.status, found.outcome, found.summary) == ("failed", "2001", '{"completed_steps":1}')
    assert found.is_over
    assert found.holder == ""
    assert not await store.journal.finish(found, record(run), "{}", now())
    assert not await store.journal.write(run.run_id, "me", [Entry(1, "{}")])
    kept = await store.runs.get(run.run_id)
    assert kept is not None
    assert (kept.door, kept.outcome) == ("rep", "2001")


async def test_run_that_failed_may_be_tried_again_and_ends_again(store: Store) -> None:
    run = await claimed(store)
    await store.journal.finish(run, record(run, "2001"), "{}", now())
    failed = await store.journal.get(run.run_id)
    assert failed is not None
    again = await store.journal.claim(failed, "other", now())
    assert again is not None
    assert (again.status, again.outcome, again.summary, again.ended_at) == ("running", None, None, None)
    assert again.started_at == run.started_at
    assert await store.journal.finish(again, record(run), '{"completed_steps":2}', now())
    kept = await store.runs.get(run.run_id)
    assert kept is not None
    assert kept.outcome == "ok"


async def test_run_of_another_door_is_never_overwritten(store: Store) -> None:
    other = a_run("bob", run_id="same")
    await store.runs.add_many([other])
    run = await claimed(store, run_id="same")
    assert await store.journal.finish(run, record(run), "{}", now())
    assert await store.runs.get("same") == other


async def test_beginnings_without_a_step_further_are_counted(store: Store) -> None:
    run: FlowRunRow | None = await claimed(store)
    counts = []
    for number in range(5):
        assert run is not None
        counts.append(run.claims)
        if number == 2:
            await store.journal.write(run.run_id, "me", [Entry(1, "{}"), Entry(2, "{}", "first")])
        run = await store.journal.claim(run, "me", now())
    assert counts == [1, 2, 3, 1, 2]


async def test_what_is_not_over_is_found_by_who_goes_on_with_it(store: Store) -> None:
    going = await claimed(store)
    waiting = a_flow_run(created_at=now(plus_seconds=-9))
    await store.journal.add(waiting)
    await store.journal.add(a_flow_run(origin="cli"))
    over = await claimed(store)
    await store.journal.finish(over, record(over), "{}", now())
    found = await store.journal.unfinished("server")
    assert [each.run_id for each in found] == [waiting.run_id, going.run_id]
    assert await store.journal.let_go(going.run_id, "me")
    found = await store.journal.unfinished("server")
    assert [each.holder for each in found] == ["", ""]


async def test_old_runs_are_forgotten_with_their_journals_once_they_are_over(store: Store) -> None:
    long_ago = now(plus_seconds=-1_000)
    over, going = await claimed(store), await claimed(store, created_at=long_ago)
    for run in (over, going):
        await store.journal.write(run.run_id, "me", [Entry(1, "{}")])
    await store.journal.finish(over, record(over), "{}", long_ago)
    assert await store.journal.prune(now(plus_seconds=-500)) == 1
    assert await store.journal.get(over.run_id) is None
    assert await store.journal.events(over.run_id) == []
    assert await store.journal.events(going.run_id) == [Entry(1, "{}")]


async def test_old_runs_are_forgotten_a_few_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_FORGOTTEN", 10)
    monkeypatch.setattr(runs, "MOST_FORGOTTEN", 10)
    long_ago = now(plus_seconds=-1_000)
    for number in range(12):
        run = await claimed(store, run_id=f"{number:02}")
        lines = 25 if number == 5 else 4
        await store.journal.write(run.run_id, "me", [Entry(each, "{}") for each in range(1, lines + 1)])
        await store.journal.finish(run, record(run), "{}", long_ago)
    await store.runs.add_many([a_run(started_at=long_ago) for _ in range(25)])
    write = store._database.write
    sizes = list[int]()

    async def counted(*statements: Statement) -> list[Changed]:
        changed = await write(*statements)
        sizes.extend(each.touched for each in changed)
        return changed

    monkeypatch.setattr(store._database, "write", counted)
    assert await store.journal.prune(now(plus_seconds=-500)) == 12
    # The one that alone has more goes alone.
    assert sorted(sizes) == [1, 1, 2, 2, 2, 2, 2]
    assert await store._database.read("SELECT count(*) FROM flow_journal") == [(0,)]
    sizes.clear()
    assert await store.runs.prune(now(plus_seconds=-500)) == 25
    assert sizes == [10, 10, 5]


async def test_steps_that_wait_for_somebody_are_told_apart_counted_and_paged(store: Store) -> None:
    run = await claimed(store)

    def event(number: int, kind: str, step: str) -> Entry:
        return Entry(number, f"{number}", None, kind, None if kind == "log" else step)

    entries = [event(number, "approval", f"s{number}") for number in range(1, 8)]
    entries += [event(8, "approved", "s1"), event(9, "step", "s2"), event(10, "log", "s3")]
    entries += [event(11, "step", "s4"), event(12, "approval", "s4"), event(13, "approval", "s5/inner")]
    assert await store.journal.write(run.run_id, "me", entries)
    asking = await store.journal.asking(run.run_id)
    assert [each.subject for each in asking] == ["s3", "s5", "s6", "s7", "s4", "s5/inner"]
    assert await store.journal.count_asking(run.run_id) == 6
    assert await store.journal.steps_asking(run.run_id) == {each.subject for each in asking}
    page = await store.journal.asking(run.run_id, limit=2, offset=1)
    assert [each.subject for each in page] == ["s5", "s6"]
    assert [each.body for each in await store.journal.asking(run.run_id, step="s4")] == ["12"]
    assert await store.journal.asking(run.run_id, step="s1") == []
    assert await store.journal.asking("other") == []


async def test_steps_of_the_flow_itself_that_are_over_are_counted_once(store: Store) -> None:
    run = await claimed(store)
    results = [
        ("a", "failed"),
        ("a", "succeeded"),
        ("b", "failed"),
        ("c", "succeeded"),
        ("c/in", "succeeded"),
    ]
    entries = [Entry(number, "{}", step, kind) for number, (step, kind) in enumerate(results, 1)]
    await store.journal.write(run.run_id, "me", [*entries, Entry(9, "{}", None, "step", "d")])
    assert await store.journal.counts(run.run_id) == (2, 2)


async def test_texts_of_every_kind_stay_what_they_are(store: Store) -> None:
    run = await claimed(store, inputs=msgspec.json.encode({"a": "\0", "b": "é\U0001f600"}).decode())
    assert run.inputs == '{"a":"\\u0000","b":"é\U0001f600"}'


@pytest.mark.parametrize("run_id", ["a\0b", "a\ud800"])
async def test_name_that_cannot_be_kept_is_refused(store: Store, run_id: str) -> None:
    with pytest.raises(InvalidText, match="run_id"):
        await store.journal.add(a_flow_run(run_id=run_id))
    assert await store.journal.get(run_id) is None


async def test_what_is_asked_of_a_run_is_taken_once_and_in_order(store: Store) -> None:
    run = await claimed(store)
    for number in range(3):
        await store.journal.ask(run.run_id, f"{number}", now(plus_seconds=number))
    assert await store.journal.asked("another") == []
    assert await store.journal.asked(run.run_id) == ["0", "1", "2"]
    assert await store.journal.asked(run.run_id) == []
