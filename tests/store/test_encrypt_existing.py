"""Encryption of the inputs, results and events of flow runs. Each encrypted value is bound to its row of the
database.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.store.factories import make_flow_run, make_run

from hutch.errors import StoreError, VaultError
from hutch.settings import Settings
from hutch.store import encrypt_existing
from hutch.store.backends import migrate
from hutch.store.backends.base import SqlStatement
from hutch.store.models import FlowRunRow, now
from hutch.store.store import Store
from hutch.store.tables.journal import JournalEntry
from hutch.vault.flow_keys import open_store

SECRET = "S3CRET"
TABLES = ("meta", "runs", "flows", "flow_versions", "flow_runs", "flow_journal", "flow_requests")
MIGRATIONS = migrate.migrations()


async def all_rows(store: Store) -> dict[str, Any]:
    """Returns all rows of the tables, as a reader of the database sees them."""
    return {each: sorted(await store._database.scan(f"SELECT * FROM {each}"), key=str) for each in TABLES}


async def execute(store: Store, sql: str, **parameters: Any) -> None:
    await store._database.write(SqlStatement(sql, parameters))


def secret_in_files(home: Path) -> bool:
    """Returns whether the secret occurs in a database file."""
    files = [*home.glob("hutch.db*")]
    assert files
    return any(SECRET.encode() in each.read_bytes() for each in files)


def secret_json(key: str) -> str:
    return f'{{"{key}":"{SECRET}"}}'


async def finished_run(store: Store, run_id: str = "r", owner: str = "ada") -> FlowRunRow:
    """Creates a finished run with data of every kind."""
    texts = {
        "document": secret_json("document"),
        "inputs": secret_json("inputs"),
        "options": secret_json("options"),
    }
    await store.journal.add(make_flow_run(owner, run_id=run_id, **texts))
    head = await store.journal.head(run_id)
    assert head is not None
    run = await store.journal.claim(head, "me", now())
    assert run is not None
    entries = [
        JournalEntry(1, secret_json("event"), None, "step", "a"),
        JournalEntry(2, secret_json("output"), "a", "succeeded"),
        JournalEntry(3, secret_json("log"), None, "log"),
        JournalEntry(4, secret_json("error"), "b", "failed"),
    ]
    assert await store.journal.write(run_id, "me", entries)
    await store.journal.add_request(run_id, secret_json("asked"), now())
    await store.journal.finish(
        run, make_run(owner, run_id=run_id, protocol="rep"), secret_json("summary"), now()
    )
    found = await store.journal.get(run_id)
    assert found is not None
    return found


async def test_no_plaintext_is_stored(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        run = await finished_run(store)
        await store.flows.put("ada", "deploy", secret_json("document"), now())
        await store.flows.put("ada", "deploy", secret_json("another"), now())
        stored = await all_rows(store)
        assert all(stored.values())
        assert SECRET not in str(stored)
        if store_settings.database_url is None:
            assert not secret_in_files(store_settings.home_path)
        # The store has the key, so it can decrypt everything.
        assert (run.document, run.inputs) == (secret_json("document"), secret_json("inputs"))
        assert (run.options, run.summary) == (secret_json("options"), secret_json("summary"))
        assert await store.journal.steps("r") == [
            ("a", secret_json("output")),
            ("b", secret_json("error")),
        ]
        assert [each.body for each in await store.journal.events("r")] == [
            secret_json("event"),
            secret_json("log"),
        ]
        assert await store.journal.take_requests("r") == [secret_json("asked")]
        versions = await store.flows.versions("ada", "deploy")
        assert [each.document for each in versions] == [
            secret_json("another"),
            secret_json("document"),
        ]
    if store_settings.database_url is None:
        assert not secret_in_files(store_settings.home_path)
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
async def test_altered_run_cannot_be_decrypted(store: Store, change: str) -> None:
    await finished_run(store)
    other = await finished_run(store, "other")
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
async def test_moved_or_altered_result_cannot_be_decrypted(store: Store, change: str) -> None:
    await finished_run(store)
    await finished_run(store, "other")
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
async def test_moved_or_altered_event_cannot_be_decrypted(store: Store, change: str) -> None:
    await finished_run(store)
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
async def test_moved_flow_cannot_be_decrypted(store: Store, change: str) -> None:
    await store.flows.put("ada", "deploy", "1", now())
    await store.flows.put("ada", "deploy", "2", now())
    await store.flows.put("bob", "deploy", "3", now())
    await execute(store, change)
    with pytest.raises(VaultError):
        await store.flows.get("ada", "deploy")


async def test_request_moved_to_another_run_is_dropped(store: Store) -> None:
    for run_id in ("r", "other"):
        await store.journal.add(make_flow_run(run_id=run_id))
    await store.journal.add_request("r", '{"type":"cancel"}', now())
    await execute(store, "UPDATE flow_requests SET run_id = 'other'")
    assert await store.journal.take_requests("other") == []


async def test_undecryptable_request_does_not_affect_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.journal.add(make_flow_run(run_id="r"))
    for body in ("first", "altered", "last"):
        await store.journal.add_request("r", body, now())
    ids = [row[0] for row in await store._database.scan("SELECT id FROM flow_requests ORDER BY id")]
    await execute(store, "UPDATE flow_requests SET body = 'altered' WHERE id = :id", id=ids[1])
    assert await store.journal.take_requests("r") == ["first", "last"]
    assert caplog.text.count("dropped a request for run r") == 1
    assert await store.journal.take_requests("r") == []
    assert caplog.text.count("dropped a request for run r") == 1


async def test_requests_stay_if_the_store_fails_while_decrypting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.journal.add(make_flow_run(run_id="r"))
    await store.journal.add_request("r", "asked", now())

    async def failing(*_: str) -> str:
        raise StoreError("the database went away")

    with monkeypatch.context() as patch:
        patch.setattr(store.journal._encryption, "decrypt", failing)
        with pytest.raises(StoreError):
            await store.journal.take_requests("r")
    assert await store.journal.take_requests("r") == ["asked"]


# --- the master key ---


WRONG = base64.b64encode(b"w" * 32).decode()


@pytest.mark.parametrize("key", ["wrong", "missing"])
async def test_without_the_master_key_nothing_is_decrypted_or_overwritten(
    store_settings: Settings, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    async with await open_store(store_settings) as store:
        run = await finished_run(store)
        flow = await store.flows.put("ada", "deploy", "{}", now())
        before = await all_rows(store)
    file = store_settings.home_path / "master.key"
    if key == "wrong":
        monkeypatch.setenv("HUTCH_MASTER_KEY", WRONG)
        message = "The master key is not the one that this database is encrypted with"
    else:
        file.rename(file.with_suffix(".aside"))
        message = "There is no master key"
    async with await open_store(store_settings) as store:
        for attempt in (
            store.journal.get("r"),
            store.journal.events("r"),
            store.journal.steps("r"),
            store.journal.step_counts("r"),
            store.journal.open_approvals("r"),
            store.journal.add(make_flow_run()),
            store.journal.add_request("r", "{}", now()),
            store.journal.write("r", "me", [JournalEntry(9, "{}")]),
            store.flows.get("ada", "deploy"),
            store.flows.put("ada", "deploy", "another", now()),
        ):
            with pytest.raises(VaultError, match=message):
                await attempt
        # Runs can still be listed, because their ids are not encrypted.
        assert [each.run_id for each in await store.journal.list()] == ["r"]
        assert await all_rows(store) == before
    assert file.exists() is (key == "wrong")
    if key == "wrong":
        monkeypatch.delenv("HUTCH_MASTER_KEY")
    else:
        file.with_suffix(".aside").rename(file)
    async with await open_store(store_settings) as store:
        assert await store.journal.get("r") == run
        assert await store.flows.get("ada", "deploy") == flow


async def test_store_opened_without_keys_raises_and_changes_nothing(
    store_settings: Settings,
) -> None:
    async with await open_store(store_settings) as store:
        run = await finished_run(store)
        before = await all_rows(store)
    async with await Store.open(store_settings) as store:
        for attempt in (
            store.journal.get("r"),
            store.journal.add(make_flow_run()),
            store.flows.get("ada", "x"),
        ):
            with pytest.raises(VaultError, match="opened without the keys of flows"):
                await attempt
        assert [each.run_id for each in await store.journal.list()] == ["r"]
        assert await all_rows(store) == before
    async with await open_store(store_settings) as store:
        assert await store.journal.get("r") == run


async def test_stores_starting_together_share_one_key(store_settings: Settings) -> None:
    stores = [await open_store(store_settings) for _ in range(4)]
    for number, store in enumerate(stores):
        await store.journal.add(make_flow_run(run_id=f"{number}", inputs=f"{number}"))
    for store in stores:
        found = [await store.journal.get(f"{number}") for number in range(4)]
        assert [each.inputs for each in found if each is not None] == ["0", "1", "2", "3"]
        await store.close()


# --- rows written before migration 5 ---


OLD_RUN = """
    INSERT INTO flow_runs (run_id, owner, flow, origin, status, created_at, holder, claims, claimed_steps,
        document, inputs, options, summary)
    VALUES (:run_id, 'ada', 'deploy', 'server', 'running', :at, 'me', 1, 0,
        :document, :inputs, '{}', :summary)
"""
OLD_ENTRY = """
    INSERT INTO flow_journal (run_id, number, step, body) VALUES ('old', :number, :step, :body)
"""


async def insert_plaintext_rows(store: Store) -> None:
    """Inserts rows as written before migration 5."""
    texts = {
        "document": secret_json("document"),
        "inputs": secret_json("inputs"),
        "summary": secret_json("summary"),
    }
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
    await execute(store, f"INSERT INTO flow_requests VALUES ('old', '1', '{secret_json('asked')}')")
    values = f"('ada', 'deploy', 1, '{secret_json('document')}', '{now()}', '{now()}')"
    for table in ("flows", "flow_versions"):
        await execute(store, f"INSERT INTO {table} VALUES {values}")


@pytest.fixture
async def plaintext_settings(new_store_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A database at migration 4."""
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda: MIGRATIONS[:4])
        async with await open_store(new_store_settings) as store:
            await insert_plaintext_rows(store)
    return new_store_settings


async def check_old_rows(store: Store) -> None:
    found = await store.journal.get("old")
    assert found is not None
    assert (found.inputs, found.summary) == (secret_json("inputs"), secret_json("summary"))
    assert await store.journal.step_counts("old") == (1, 1)
    assert [each.subject for each in await store.journal.open_approvals("old")] == ["c"]
    assert dict(await store.journal.steps("old"))["a"] == f'{{"state":"succeeded","output":"{SECRET}"}}'
    assert [each.kind for each in await store.journal.events("old")] == [
        "step",
        "log",
        "step",
        "approval",
        "approval",
        "approved",
    ]
    flow = await store.flows.put("ada", "deploy", secret_json("document"), now())
    assert flow.version == 1
    assert [each.document for each in await store.flows.versions("ada", "deploy")] == [
        secret_json("document")
    ]


async def test_plaintext_rows_are_encrypted_at_the_first_use(plaintext_settings: Settings) -> None:
    async with await open_store(plaintext_settings) as store:
        assert SECRET in str(await all_rows(store))
        await check_old_rows(store)
        assert SECRET not in str(await all_rows(store))
        assert await store.meta.get(encrypt_existing.PLAINTEXT_MARK) is None
        assert await store.journal.take_requests("old") == [secret_json("asked")]
    if plaintext_settings.database_url is None:
        assert not secret_in_files(plaintext_settings.home_path)
    async with await open_store(plaintext_settings) as store:
        await check_old_rows(store)


async def test_plaintext_rows_with_unstorable_kinds_are_encrypted(plaintext_settings: Settings) -> None:
    bodies = [
        r'{"type":"odd\u0000\ud800"}',
        r'{"type":"approval","step_id":"e\u0000"}',
        '{"type":"approval","step_id":7}',
    ]
    async with await open_store(plaintext_settings) as store:
        for number, body in enumerate(bodies, 101):
            await execute(store, OLD_ENTRY, number=number, step=None, body=body)
        found = await store.journal.events("old", after=100)
        assert [each.body for each in found] == bodies
        assert [each.kind for each in found] == ["odd\ufffd\ufffd", "approval", "approval"]
        assert [each.subject for each in found] == [None, "e\ufffd", "7"]
        assert await store.meta.get(encrypt_existing.PLAINTEXT_MARK) is None


async def test_interrupted_encryption_is_resumed(
    plaintext_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_store(plaintext_settings) as store:
        write, calls = store._database.write, 0

        async def failing(*statements: SqlStatement) -> Any:
            nonlocal calls
            calls += len(statements) > 1
            if calls == 3:
                raise OSError("the power goes")
            return await write(*statements)

        monkeypatch.setattr(store._database, "write", failing)
        with pytest.raises(OSError, match="the power goes"):
            await store.journal.get("old")
    async with await open_store(plaintext_settings) as store:
        encrypted = await store._database.read(
            "SELECT count(*) FROM flow_runs WHERE document LIKE 'hutch1.%'"
        )
        assert 0 < encrypted[0][0] < 121
        await check_old_rows(store)
        assert SECRET not in str(await all_rows(store))


async def test_concurrent_encryption_loses_nothing(plaintext_settings: Settings) -> None:
    stores = [await open_store(plaintext_settings) for _ in range(3)]
    await asyncio.gather(*(store.journal.get("old") for store in stores))
    for store in stores:
        await check_old_rows(store)
        await store.close()


async def test_new_database_has_no_plaintext_mark(new_store_settings: Settings) -> None:
    async with await open_store(new_store_settings) as store:
        assert await store.meta.get(encrypt_existing.PLAINTEXT_MARK) is None
