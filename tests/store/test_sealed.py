"""What runs of flows are given, give and tell is sealed in the database, and opens in its own place alone."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.store.made import a_flow_run, a_run

from hutch.errors import StoreError, VaultError
from hutch.settings import Settings
from hutch.store import migrating, sealed
from hutch.store.database import Statement
from hutch.store.journal import Entry
from hutch.store.rows import FlowRunRow, now
from hutch.store.store import Store
from hutch.vault.journals import open_store

SECRET = "S3CRET"
TABLES = ("meta", "runs", "flows", "flow_versions", "flow_runs", "flow_journal", "flow_requests")
ALL = migrating.migrations()


async def everything(store: Store) -> dict[str, Any]:
    """All that is in the tables, as whoever can read the database sees it."""
    return {each: sorted(await store._database.scan(f"SELECT * FROM {each}"), key=str) for each in TABLES}


async def execute(store: Store, sql: str, **parameters: Any) -> None:
    await store._database.write(Statement(sql, parameters))


def in_files(home: Path) -> bool:
    """Whether the secret stands anywhere in the database's files."""
    files = [*home.glob("hutch.db*")]
    assert files
    return any(SECRET.encode() in each.read_bytes() for each in files)


def said(what: str) -> str:
    return f'{{"{what}":"{SECRET}"}}'


async def filled(store: Store, run_id: str = "r", owner: str = "ada") -> FlowRunRow:
    """A run that has something of every kind, and is over."""
    texts = {"document": said("document"), "inputs": said("inputs"), "options": said("options")}
    await store.journal.add(a_flow_run(owner, run_id=run_id, **texts))
    head = await store.journal.head(run_id)
    assert head is not None
    run = await store.journal.claim(head, "me", now())
    assert run is not None
    entries = [
        Entry(1, said("event"), None, "step", "a"),
        Entry(2, said("output"), "a", "succeeded"),
        Entry(3, said("log"), None, "log"),
        Entry(4, said("error"), "b", "failed"),
    ]
    assert await store.journal.write(run_id, "me", entries)
    await store.journal.ask(run_id, said("asked"), now())
    await store.journal.finish(run, a_run(owner, run_id=run_id, door="rep"), said("summary"), now())
    found = await store.journal.get(run_id)
    assert found is not None
    return found


async def test_nothing_that_was_given_or_came_of_it_stands_in_the_database(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        run = await filled(store)
        await store.flows.put("ada", "deploy", said("document"), now())
        await store.flows.put("ada", "deploy", said("another"), now())
        told = await everything(store)
        assert all(told.values())
        assert SECRET not in str(told)
        if store_settings.database_url is None:
            assert not in_files(store_settings.home_path)
        # It is all there for who has the key.
        assert (run.document, run.inputs) == (said("document"), said("inputs"))
        assert (run.options, run.summary) == (said("options"), said("summary"))
        assert await store.journal.steps("r") == [("a", said("output")), ("b", said("error"))]
        assert [each.body for each in await store.journal.events("r")] == [said("event"), said("log")]
        assert await store.journal.asked("r") == [said("asked")]
        versions = await store.flows.versions("ada", "deploy")
        assert [each.document for each in versions] == [said("another"), said("document")]
    if store_settings.database_url is None:
        assert not in_files(store_settings.home_path)
    async with await open_store(store_settings) as again:
        assert await again.journal.get("r") == run


RUNS, JOURNAL = "UPDATE flow_runs SET", "UPDATE flow_journal SET"
FLOWS, VERSIONS = "UPDATE flows SET", "UPDATE flow_versions SET"
BODY = "(SELECT body FROM flow_journal AS o WHERE o.run_id = '{}' AND o.number = {})"
OF_OTHER = "(SELECT {0} FROM flow_runs AS other WHERE other.run_id = 'other')"


@pytest.mark.parametrize(
    "change",
    [
        f"{RUNS} inputs = {OF_OTHER.format('inputs')} WHERE run_id = 'r'",
        f"{RUNS} document = {OF_OTHER.format('document')} WHERE run_id = 'r'",
        f"{RUNS} summary = {OF_OTHER.format('summary')} WHERE run_id = 'r'",
        f"{RUNS} inputs = options, options = inputs WHERE run_id = 'r'",
        f"{RUNS} owner = 'bob' WHERE run_id = 'r'",
        f"{RUNS} inputs = '{{}}' WHERE run_id = 'r'",
        f"{RUNS} inputs = substr(inputs, 1, 40) WHERE run_id = 'r'",
    ],
)
async def test_run_that_was_altered_does_not_open(store: Store, change: str) -> None:
    await filled(store)
    other = await filled(store, "other")
    await execute(store, change)
    with pytest.raises(VaultError):
        await store.journal.get("r")
    assert await store.journal.get("other") == other


@pytest.mark.parametrize(
    "change",
    [
        f"{JOURNAL} body = {BODY.format('other', 2)} WHERE run_id = 'r' AND number = 2",
        f"{JOURNAL} body = {BODY.format('r', 4)} WHERE run_id = 'r' AND number = 2",
        f"{JOURNAL} number = number + 10 WHERE run_id = 'r'",
        f"{JOURNAL} step = 'c' WHERE run_id = 'r' AND number = 2",
        f"{JOURNAL} kind = 'failed' WHERE run_id = 'r' AND number = 2",
        f"{JOURNAL} body = '{{\"state\":\"succeeded\"}}' WHERE run_id = 'r' AND number = 2",
    ],
)
async def test_result_that_was_moved_or_altered_does_not_open(store: Store, change: str) -> None:
    await filled(store)
    await filled(store, "other")
    await execute(store, change)
    with pytest.raises(VaultError):
        await store.journal.steps("r")
    assert len(await store.journal.steps("other")) == 2


@pytest.mark.parametrize(
    "change",
    [
        f"{JOURNAL} body = {BODY.format('r', 3)} WHERE run_id = 'r' AND number = 1",
        f"{JOURNAL} step = NULL WHERE run_id = 'r' AND number = 2",
        f"{JOURNAL} subject = 'b' WHERE run_id = 'r' AND number = 1",
        f"{JOURNAL} kind = 'approval' WHERE run_id = 'r' AND number = 1",
    ],
)
async def test_event_that_was_moved_or_altered_does_not_open(store: Store, change: str) -> None:
    await filled(store)
    await execute(store, change)
    with pytest.raises(VaultError):
        await store.journal.events("r")


@pytest.mark.parametrize(
    "change",
    [
        f"{FLOWS} document = (SELECT document FROM flows AS o WHERE o.owner = 'bob') WHERE owner = 'ada'",
        f"{FLOWS} document = (SELECT document FROM flow_versions AS o WHERE o.owner = 'ada' AND version = 1)",
        f"{FLOWS} version = 1 WHERE owner = 'ada'",
    ],
)
async def test_flow_that_was_moved_does_not_open(store: Store, change: str) -> None:
    await store.flows.put("ada", "deploy", "1", now())
    await store.flows.put("ada", "deploy", "2", now())
    await store.flows.put("bob", "deploy", "3", now())
    await execute(store, change)
    with pytest.raises(VaultError):
        await store.flows.get("ada", "deploy")


async def test_what_is_asked_of_one_run_cannot_be_asked_of_another(store: Store) -> None:
    for run_id in ("r", "other"):
        await store.journal.add(a_flow_run(run_id=run_id))
    await store.journal.ask("r", '{"type":"cancel"}', now())
    await execute(store, "UPDATE flow_requests SET run_id = 'other'")
    assert await store.journal.asked("other") == []


async def test_request_that_does_not_open_takes_no_other_with_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.journal.add(a_flow_run(run_id="r"))
    for body in ("first", "altered", "last"):
        await store.journal.ask("r", body, now())
    ids = [row[0] for row in await store._database.scan("SELECT id FROM flow_requests ORDER BY id")]
    await execute(store, "UPDATE flow_requests SET body = 'altered' WHERE id = :id", id=ids[1])
    assert await store.journal.asked("r") == ["first", "last"]
    assert caplog.text.count("a request for run r is left out") == 1
    assert await store.journal.asked("r") == []
    assert caplog.text.count("a request for run r is left out") == 1


async def test_requests_stay_where_the_store_fails_while_they_are_opened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.journal.add(a_flow_run(run_id="r"))
    await store.journal.ask("r", "asked", now())

    async def failing(*_: str) -> str:
        raise StoreError("the database went away")

    with monkeypatch.context() as patch:
        patch.setattr(store.journal._seals, "unseal", failing)
        with pytest.raises(StoreError):
            await store.journal.asked("r")
    assert await store.journal.asked("r") == ["asked"]


# --- the master key ---


WRONG = base64.b64encode(b"w" * 32).decode()


@pytest.mark.parametrize("key", ["wrong", "missing"])
async def test_without_the_master_key_nothing_opens_and_nothing_is_overwritten(
    store_settings: Settings, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    async with await open_store(store_settings) as store:
        run = await filled(store)
        flow = await store.flows.put("ada", "deploy", "{}", now())
        before = await everything(store)
    file = store_settings.home_path / "master.key"
    if key == "wrong":
        monkeypatch.setenv("HUTCH_MASTER_KEY", WRONG)
        message = "The master key is not the one that this database is sealed with"
    else:
        file.rename(file.with_suffix(".aside"))
        message = "There is no master key"
    async with await open_store(store_settings) as store:
        for trying in (
            store.journal.get("r"),
            store.journal.events("r"),
            store.journal.steps("r"),
            store.journal.counts("r"),
            store.journal.asking("r"),
            store.journal.add(a_flow_run()),
            store.journal.ask("r", "{}", now()),
            store.journal.write("r", "me", [Entry(9, "{}")]),
            store.flows.get("ada", "deploy"),
            store.flows.put("ada", "deploy", "another", now()),
        ):
            with pytest.raises(VaultError, match=message):
                await trying
        # Which runs there are is no secret.
        assert [each.run_id for each in await store.journal.list()] == ["r"]
        assert await everything(store) == before
    assert file.exists() is (key == "wrong")
    if key == "wrong":
        monkeypatch.delenv("HUTCH_MASTER_KEY")
    else:
        file.with_suffix(".aside").rename(file)
    async with await open_store(store_settings) as store:
        assert await store.journal.get("r") == run
        assert await store.flows.get("ada", "deploy") == flow


async def test_store_that_was_opened_without_keys_tells_so_and_changes_nothing(
    store_settings: Settings,
) -> None:
    async with await open_store(store_settings) as store:
        run = await filled(store)
        before = await everything(store)
    async with await Store.open(store_settings) as store:
        for trying in (store.journal.get("r"), store.journal.add(a_flow_run()), store.flows.get("ada", "x")):
            with pytest.raises(VaultError, match="opened without the keys of flows"):
                await trying
        assert [each.run_id for each in await store.journal.list()] == ["r"]
        assert await everything(store) == before
    async with await open_store(store_settings) as store:
        assert await store.journal.get("r") == run


async def test_stores_that_begin_at_once_have_one_key(store_settings: Settings) -> None:
    stores = [await open_store(store_settings) for _ in range(4)]
    for number, store in enumerate(stores):
        await store.journal.add(a_flow_run(run_id=f"{number}", inputs=f"{number}"))
    for store in stores:
        found = [await store.journal.get(f"{number}") for number in range(4)]
        assert [each.inputs for each in found if each is not None] == ["0", "1", "2", "3"]
        await store.close()


# --- of before ---


OLD_RUN = """
    INSERT INTO flow_runs (run_id, owner, flow, origin, status, created_at, holder, claims, claimed_steps,
        document, inputs, options, summary)
    VALUES (:run_id, 'ada', 'deploy', 'server', 'running', :at, 'me', 1, 0,
        :document, :inputs, '{}', :summary)
"""
OLD_ENTRY = """
    INSERT INTO flow_journal (run_id, number, step, body) VALUES ('old', :number, :step, :body)
"""


async def of_before(store: Store) -> None:
    """As Hutch wrote it before migration 5."""
    texts = {"document": said("document"), "inputs": said("inputs"), "summary": said("summary")}
    for run_id in ("old", *(f"old{number}" for number in range(120))):
        await execute(store, OLD_RUN, run_id=run_id, at=now(), **texts)
    bodies: list[tuple[str | None, str]] = [
        (None, '{"type":"step","timestamp":"t","step_id":"a","state":"started"}'),
        (None, f'{{"type":"log","timestamp":"t","step_id":"a","message":"{SECRET}"}}'),
        ("a", f'{{"state":"succeeded","output":"{SECRET}"}}'),
        (None, '{"type":"step","timestamp":"t","step_id":"a","state":"succeeded"}'),
        ("b", f'{{"state":"failed","error":"{SECRET}"}}'),
        (None, '{"type":"approval","timestamp":"t","step_id":"c","message":"C?"}'),
        (None, '{"type":"approval","timestamp":"t","step_id":"d","message":"D?"}'),
        (None, '{"type":"approved","timestamp":"t","step_id":"d","approved":true}'),
    ]
    for number, (step, body) in enumerate(bodies, 1):
        await execute(store, OLD_ENTRY, number=number, step=step, body=body)
    await execute(store, f"INSERT INTO flow_requests VALUES ('old', '1', '{said('asked')}')")
    values = f"('ada', 'deploy', 1, '{said('document')}', '{now()}', '{now()}')"
    for table in ("flows", "flow_versions"):
        await execute(store, f"INSERT INTO {table} VALUES {values}")


@pytest.fixture
async def older(store_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A database of migration 4."""
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda: ALL[:4])
        async with await open_store(store_settings) as store:
            await of_before(store)
    return store_settings


async def is_all_there(store: Store) -> None:
    found = await store.journal.get("old")
    assert found is not None
    assert (found.inputs, found.summary) == (said("inputs"), said("summary"))
    assert await store.journal.counts("old") == (1, 1)
    assert [each.subject for each in await store.journal.asking("old")] == ["c"]
    assert dict(await store.journal.steps("old"))["a"] == f'{{"state":"succeeded","output":"{SECRET}"}}'
    assert [each.kind for each in await store.journal.events("old")] == [
        "step",
        "log",
        "step",
        "approval",
        "approval",
        "approved",
    ]
    kept = await store.flows.put("ada", "deploy", said("document"), now())
    assert kept.version == 1
    assert [each.document for each in await store.flows.versions("ada", "deploy")] == [said("document")]


async def test_what_was_kept_before_is_sealed_by_who_first_needs_it(older: Settings) -> None:
    async with await open_store(older) as store:
        assert SECRET in str(await everything(store))
        await is_all_there(store)
        assert SECRET not in str(await everything(store))
        assert await store.meta.get(sealed.MARK) is None
        assert await store.journal.asked("old") == [said("asked")]
    if older.database_url is None:
        assert not in_files(older.home_path)
    async with await open_store(older) as store:
        await is_all_there(store)


async def test_what_was_kept_before_may_be_called_what_no_column_keeps(older: Settings) -> None:
    bodies = [
        r'{"type":"odd\u0000\ud800"}',
        r'{"type":"approval","step_id":"e\u0000"}',
        '{"type":"approval","step_id":7}',
    ]
    async with await open_store(older) as store:
        for number, body in enumerate(bodies, 101):
            await execute(store, OLD_ENTRY, number=number, step=None, body=body)
        found = await store.journal.events("old", after=100)
        assert [each.body for each in found] == bodies
        assert [each.kind for each in found] == ["odd\ufffd\ufffd", "approval", "approval"]
        assert [each.subject for each in found] == [None, "e\ufffd", "7"]
        assert await store.meta.get(sealed.MARK) is None


async def test_sealing_that_is_cut_short_is_gone_on_with(
    older: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_store(older) as store:
        write, calls = store._database.write, 0

        async def failing(*statements: Statement) -> Any:
            nonlocal calls
            calls += len(statements) > 1
            if calls == 3:
                raise OSError("the power goes")
            return await write(*statements)

        monkeypatch.setattr(store._database, "write", failing)
        with pytest.raises(OSError, match="the power goes"):
            await store.journal.get("old")
    async with await open_store(older) as store:
        begun = await store._database.read("SELECT count(*) FROM flow_runs WHERE document LIKE 'hutch1.%'")
        assert 0 < begun[0][0] < 121
        await is_all_there(store)
        assert SECRET not in str(await everything(store))


async def test_stores_that_seal_the_same_at_once_lose_nothing(older: Settings) -> None:
    stores = [await open_store(older) for _ in range(3)]
    await asyncio.gather(*(store.journal.get("old") for store in stores))
    for store in stores:
        await is_all_there(store)
        await store.close()


async def test_new_database_has_nothing_of_before(store: Store) -> None:
    assert await store.meta.get(sealed.MARK) is None
