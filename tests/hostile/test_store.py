"""Values that a database cannot store, concurrent writes, and lost connections. The tests run on SQLite and
PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.store.factories import (
    add_user,
    create_flow_key,
    make_ability,
    make_credential,
    make_flow_run,
    make_key,
    make_run,
    make_user,
)
from tests.support import databases
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import InvalidText, StoreError, UnstorableValue
from hutch.settings import Settings
from hutch.store.backends import postgres as postgres_backend
from hutch.store.backends.base import SqlStatement
from hutch.store.models import now
from hutch.store.store import Store
from hutch.store.tables.journal import JournalEntry

pytestmark = pytest.mark.anyio

UNSTORABLE = ["a\0b", "\ud800", "x\udfff"]


def incompressible(length: int) -> str:
    """Returns text that PostgreSQL cannot compress below its limit for index entries."""
    rng = random.Random(length)
    return "".join(rng.choices(string.ascii_letters + string.digits, k=length))


# --- characters ---

Write = Callable[[Store, str], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "user": lambda store, text: store.users.add(make_user(text)),
    "key": lambda store, text: store.api_keys.add(make_key(make_user(), name=text)),
    "credential": lambda store, text: store.credentials.put(make_credential(make_user(), text)),
    "domain": lambda store, text: store.credentials.put(make_credential(make_user(), domain=text)),
    "ability": lambda store, text: store.abilities.put(make_ability(make_user(), text)),
    "name": lambda store, text: store.abilities.put(make_ability(make_user(), name=text)),
    "description": lambda store, text: store.abilities.put(make_ability(make_user(), description=text)),
    "owner": lambda store, text: store.flows.put(text, "deploy", "{}", now()),
    "flow": lambda store, text: store.flows.put("ada", text, "{}", now()),
    "run": lambda store, text: store.journal.add(make_flow_run(run_id=text)),
    "run flow": lambda store, text: store.journal.add(make_flow_run(flow=text)),
    "request": lambda store, text: store.journal.add_request(text, "{}", now()),
    "meta": lambda store, text: store.meta.put_first(text, "x"),
}


async def test_unstorable_text_is_refused_and_finds_nothing(store: Store) -> None:
    await create_flow_key(store)
    user = await add_user(store)
    await store.abilities.put(make_ability(user))
    await store.flows.put("ada", "deploy", "{}", now())
    for text in UNSTORABLE:
        for name, write in WRITES.items():
            with pytest.raises(InvalidText):
                assert await write(store, text) is None, name
        assert await store.users.by_name(text) is None
        assert await store.api_keys.by_digest(text) is None
        assert await store.abilities.get(text, user.id) is None
        assert await store.abilities.list(user.id, after=text) == []
        assert await store.abilities.search(user.id, text) == []
        assert await store.abilities.existing([text, "get_user"], user.id) == {"get_user"}
        assert await store.credentials.for_domains(user.id, [text]) == []
        assert await store.flows.get("ada", text) is None
        assert await store.flows.list("ada", after=text) == []
        assert await store.runs.get(text) is None
        assert await store.journal.head(text) is None


# --- sizes ---


async def test_number_out_of_range_is_refused_and_finds_nothing(store: Store) -> None:
    await create_flow_key(store)
    await store.flows.put("ada", "deploy", "{}", now())
    for number in (2**63, -(2**63) - 1, 10**400):
        assert await store.flows.get("ada", "deploy", number) is None
        assert await store.journal.events("run", number) == []
        with pytest.raises(UnstorableValue):
            await store.journal.add(make_flow_run(version=number))


async def test_run_record_that_cannot_be_stored_does_not_block_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The id is too long for an index of PostgreSQL. SQLite has no such limit, so it stores the record."""
    long = make_run(run_id=incompressible(20_000))
    others = [make_run(run_id=f"run{number}") for number in range(5)]
    for row in (*others[:2], long, *others[2:]):
        store.write_behind.add_run(row)
    await store.write_behind.flush()
    assert {row.run_id for row in await store.runs.list("ada")} >= {row.run_id for row in others}
    if await store.runs.get(long.run_id) is None:
        assert f"the record of run '{long.run_id[:100]}' cannot be stored" in caplog.text
        assert len(caplog.text) < 1_000


async def test_value_too_long_for_an_index_is_refused(store: Store) -> None:
    """PostgreSQL refuses the value. SQLite has no limit for index entries, so it stores the value."""
    with contextlib.suppress(UnstorableValue):
        await store.users.add(make_user(incompressible(20_000)))
    assert await add_user(store) is not None


async def test_longest_ids_of_nested_steps_are_stored(store: Store) -> None:
    """The run id has 200 characters of four bytes. The step is eight flows deep, so its full id consists of
    nine ids, each of 200 characters.
    """
    run = make_flow_run(run_id="\U0001f407" * 200)
    assert await store.journal.add(run)
    assert await store.journal.claim(run, "holder", now()) is not None
    step = "/".join(incompressible(200) for _ in range(9))
    entries = [
        JournalEntry(1, "{}", kind="approval", subject=step),
        JournalEntry(2, "{}", step, "succeeded"),
    ]
    assert await store.journal.write(run.run_id, "holder", entries)
    assert await store.journal.steps(run.run_id) == [(step, "{}")]


# --- concurrency ---


async def test_concurrent_writers_of_one_id_agree(store_settings: Settings, store: Store) -> None:
    await create_flow_key(store)
    user = await add_user(store)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        versions = await asyncio.gather(
            *(store.abilities.put(make_ability(user, name=f"n{at}")) for at in range(12))
        )
        flows = await asyncio.gather(
            *(store.flows.put("ada", "deploy", f'"{at}"', now()) for at in range(12))
        )
        added = await asyncio.gather(*(store.journal.add(make_flow_run(run_id="one")) for _ in range(12)))
        ids = await asyncio.gather(
            *(store.credentials.put(make_credential(user, "X-Key")) for _ in range(12))
        )
        users = await asyncio.gather(
            *(store.users.add(make_user("same")) for _ in range(12)), return_exceptions=True
        )
    assert sorted(versions) == list(range(1, 13))
    assert sorted(flow.version for flow in flows) == list(range(1, 13))
    assert added.count(True) == 1
    assert len(set(ids)) == 1
    assert users.count(None) == 1
    assert {type(error).__name__ for error in users if error is not None} == {"AlreadyExists"}


async def test_uses_of_keys_are_written_in_one_order(store: Store) -> None:
    """If two servers updated the same keys in different orders, they would block each other."""
    user = await add_user(store)
    keys = [make_key(user, digest=str(number), id=f"key{number}") for number in range(20)]
    for key in keys:
        await store.api_keys.add(key)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for _ in range(5):
            queues = [type(store.write_behind)(store._database, store.runs) for _ in range(2)]
            for queue, order in zip(queues, (keys, keys[::-1]), strict=True):
                for key in order:
                    queue.add_key_use(key.id, now())
            await asyncio.gather(*(queue.flush() for queue in queues))
            for queue in queues:
                await queue.close()
    assert all(key.last_used_at for key in await store.api_keys.list(user.id))


# --- connections to PostgreSQL ---


@contextlib.contextmanager
def locked_users(server: databases.PostgresServer, url: str) -> Iterator[None]:
    with server.connect(url) as session, session.transaction():
        session.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
        yield


async def wait_for_blocked_session(server: databases.PostgresServer) -> int:
    """Waits until a database session of Hutch waits for a lock. Returns the process id of the session."""
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'hutch' AND wait_event_type = 'Lock'"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with server.connect() as session:
            while True:
                row = session.execute(sql.encode()).fetchone()
                if row is not None:
                    return int(row[0])
                await asyncio.sleep(0.01)


async def test_connection_lost_during_a_write_leaves_nothing_half_written(
    postgres: databases.PostgresServer,
) -> None:
    url = postgres.new_database()
    async with await Store.open(Settings(database_url=url)) as store:
        user = await add_user(store)
        ability = make_ability(user)
        with locked_users(postgres, url):
            # In this transaction, the first statement is executed and the second one waits for the lock.
            write = asyncio.create_task(
                store._database.write(
                    SqlStatement("INSERT INTO meta (key, value) VALUES ('half', 'x')", {}),
                    SqlStatement("SELECT * FROM users", {}),
                )
            )
            pid = await wait_for_blocked_session(postgres)
            with postgres.connect() as session:
                session.execute(f"SELECT pg_terminate_backend({pid})".encode())
            with pytest.raises(StoreError, match="cannot be reached"):
                await write
        assert await store.meta.get("half") is None
        assert await store.abilities.put(ability) == 1


async def test_statement_that_takes_too_long_is_ended(
    postgres: databases.PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_backend, "STATEMENT_SECONDS", 0.2)
    async with await Store.open(Settings(database_url=postgres.new_database())) as store:
        with pytest.raises(StoreError):
            await store._database.read("SELECT pg_sleep(600)")
        assert await store.users.any() is False


async def test_cancelled_requests_give_their_connections_back(postgres: databases.PostgresServer) -> None:
    url = postgres.new_database()
    async with await Store.open(Settings(database_url=url)) as store:
        with locked_users(postgres, url):
            waiting = [asyncio.create_task(store.users.any()) for _ in range(20)]
            await wait_for_blocked_session(postgres)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await asyncio.gather(*(store.users.any() for _ in range(20))) == [False] * 20
