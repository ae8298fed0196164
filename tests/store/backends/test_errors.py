"""Databases that are locked, full, removed or unreachable. The error is clear, and no data is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.store.factories import add_user, make_user
from tests.support import databases
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store.backends.postgres import PostgresDatabase
from hutch.store.backends.sqlite import SqliteDatabase
from hutch.store.store import Store

LOCK_SECONDS = 0.1


@contextlib.asynccontextmanager
async def store_with_short_timeout(settings: Settings) -> AsyncIterator[Store]:
    """Opens a store with a short lock timeout."""
    if settings.database_url is None:
        store = Store(await SqliteDatabase.open(settings.home_path, LOCK_SECONDS), shares_rate_limits=False)
    else:
        store = Store(
            await PostgresDatabase.open(settings.database_url, LOCK_SECONDS), shares_rate_limits=True
        )
    async with store:
        yield store


@contextlib.contextmanager
def locked(settings: Settings, server: databases.PostgresServer) -> Iterator[None]:
    """Holds a write lock in another connection."""
    if settings.database_url is None:
        with contextlib.closing(
            sqlite3.connect(settings.home_path / "hutch.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
    else:
        with server.connect(settings.database_url) as other, other.transaction():
            other.execute("LOCK TABLE users IN SHARE MODE")
            yield


async def test_locked_database_times_out_and_works_again_later(
    store_settings: Settings, postgres: databases.PostgresServer
) -> None:
    async with store_with_short_timeout(store_settings) as store:
        ada = await add_user(store)
        with locked(store_settings, postgres):
            with pytest.raises(StoreError, match="is locked: another"):
                await add_user(store, "bob")
            assert await store.users.by_name("ada") == ada
        await add_user(store, "bob")
        assert len(await store.users.list()) == 2


async def test_writers_wait_for_each_other(store_settings: Settings) -> None:
    async with await Store.open(store_settings) as one, await Store.open(store_settings) as other:
        names = [f"user{number:02}" for number in range(20)]
        await asyncio.gather(
            *(add_user(store, name) for store, name in zip((one, other) * 10, names, strict=True))
        )
        assert [user.name for user in await one.users.list()] == names


async def test_exclusively_locked_sqlite_file_is_reported(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "hutch.db", isolation_level=None)) as other:
        other.executescript("PRAGMA locking_mode = EXCLUSIVE; CREATE TABLE theirs (x); BEGIN EXCLUSIVE;")
        with pytest.raises(StoreError, match=r"hutch\.db: is locked"):
            await SqliteDatabase.open(tmp_path, LOCK_SECONDS)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_removed_or_replaced_sqlite_file_is_detected(tmp_path: Path, replaced: bool) -> None:
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        await add_user(store)
        (tmp_path / "hutch.db").rename(tmp_path / "aside.db")
        if replaced:
            (tmp_path / "hutch.db").write_bytes(b"")
        for work in (store.users.by_name("ada"), store.users.list(), store.users.add(make_user("bob"))):
            with pytest.raises(StoreError, match="removed or replaced while it was in use"):
                await work


FILL = """
import asyncio
from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store.models import Ability, User, new_id, now
from hutch.store.store import Store

async def main():
    async with await Store.open(Settings(home="/small")) as store:
        user = User(id=new_id(), name="ada", data_key="", created_at=now())
        await store.users.add(user)
        count = 0
        text = "x" * 50_000
        try:
            while count < 1000:
                more = {"document": text, "created_at": now(), "updated_at": now()}
                ability = Ability(ability_id=f"a{count:04}", owner_id=user.id, name="n", **more)
                await store.abilities.put(ability)
                count += 1
        except StoreError as error:
            print(error)
        assert 0 < count < 1000
        found = await store.abilities.list(user.id)
        assert [each.document for each in found] == [text] * count
        for ability in found:
            assert len(await store.abilities.versions(ability.ability_id, user.id)) == 1
    async with await Store.open(Settings(home="/small")) as store:
        assert len(await store.abilities.list(user.id)) == count
        print("done")

asyncio.run(main())
"""


def test_full_disk_is_reported_and_stored_data_stays() -> None:
    sandbox = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--tmpfs",
        "/mnt",
        "--size",
        str(2**21),
        "--tmpfs",
        "/mnt/small",
    ]
    code = FILL.replace('"/small"', '"/mnt/small"')
    done = subprocess.run(
        [*sandbox, "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message, last_line = done.stdout.splitlines()
    assert message == "/mnt/small/hutch.db: cannot be written: the disk is full. Free some space."
    assert last_line == "done"


async def test_postgres_disk_full_is_reported_without_values(postgres: databases.PostgresServer) -> None:
    url = postgres.new_database()
    async with await Store.open(Settings(database_url=url)) as store:
        with postgres.connect(url) as connection:
            connection.execute(
                """
                CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE EXCEPTION 'no space: SECRET' USING ERRCODE = 'disk_full'; END $$;
                CREATE TRIGGER full_disk BEFORE INSERT ON users EXECUTE FUNCTION full_disk();
                """
            )
        with pytest.raises(StoreError, match="cannot be written: its disk is full") as caught:
            await add_user(store)
        assert "SECRET" not in str(caught.value)


async def test_postgres_is_used_again_at_once_after_a_restart(postgres: databases.PostgresServer) -> None:
    async with await Store.open(Settings(database_url=postgres.new_database())) as store:
        await asyncio.gather(*(add_user(store, f"user{number}") for number in range(8)))
        postgres.stop()
        try:
            for work in (store.users.list(), store.users.add(make_user())):
                with pytest.raises(StoreError, match=r"cannot be reached"):
                    await work
        finally:
            postgres.start()
        await add_user(store)
        assert len(await store.users.list()) == 9


async def test_connections_terminated_by_the_server_are_replaced(postgres: databases.PostgresServer) -> None:
    url = postgres.new_database()
    async with await Store.open(Settings(database_url=url)) as store:
        await asyncio.gather(*(add_user(store, f"user{number}") for number in range(8)))
        with postgres.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'hutch'"
            )
        await asyncio.gather(*(add_user(store, f"more{number}") for number in range(8)))
        assert len(await store.users.list()) == 16


async def test_cancelled_callers_leave_the_store_intact(store: Store) -> None:
    for number in range(20):
        task = asyncio.create_task(add_user(store, f"user{number}"))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await add_user(store)
    assert await store.users.by_name("ada") is not None


async def test_closed_store_raises(store_settings: Settings) -> None:
    store = await Store.open(store_settings)
    await store.close()
    await store.close()
    for work in (store.users.by_name("ada"), store.users.list(), store.users.add(make_user())):
        with pytest.raises(StoreError, match="is closed"):
            await work


async def test_files_and_threads_are_released_on_close(store_settings: Settings) -> None:
    before, threads = open_descriptors(), store_threads()
    for number in range(5):
        async with await Store.open(store_settings) as store:
            await add_user(store, f"user{number}")
            await store.users.list()
    gc.collect()
    assert open_descriptors() == before
    # Wait, because nobody joins the threads of the store, which end by themselves.
    wait_until(lambda: store_threads() <= threads)


async def test_close_completes_even_if_cancelled(store_settings: Settings) -> None:
    before, threads = open_descriptors(), store_threads()
    store = await Store.open(store_settings)
    await store.write_behind.close()
    database = store._database
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while open_descriptors() != before or store_threads() - threads:  # noqa: ASYNC110 - there is no event for files and threads
            await asyncio.sleep(0.01)
    with pytest.raises(StoreError, match="is closed"):
        await store.users.list()


def store_threads() -> set[threading.Thread]:
    """Returns the store threads of this process."""
    return {each for each in threading.enumerate() if each.name.startswith("hutch-store")}


def open_descriptors() -> list[str]:
    """Returns the open database files and sockets of this process."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(name for name in found if "hutch.db" in name or name.startswith("socket"))
