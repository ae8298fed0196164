"""Databases that are locked, full, gone or cut off: an error says so, and nothing that was kept is lost."""

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
from tests import databases
from tests.processes import PATIENCE, until
from tests.store.made import a_user, kept_user

from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store.postgres import Postgres
from hutch.store.sqlite import Sqlite
from hutch.store.store import Store

SOON = 0.1


@contextlib.asynccontextmanager
async def impatient(settings: Settings) -> AsyncIterator[Store]:
    """A store that does not wait long for others."""
    if settings.database_url is None:
        store = Store(await Sqlite.open(settings.home_path, SOON), shares_limits=False)
    else:
        store = Store(await Postgres.open(settings.database_url, SOON), shares_limits=True)
    async with store:
        yield store


@contextlib.contextmanager
def locked(settings: Settings, server: databases.Server) -> Iterator[None]:
    """Somebody else writes, and does not end."""
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


async def test_locked_database_is_waited_for_then_named_and_used_again(
    store_settings: Settings, postgres: databases.Server
) -> None:
    async with impatient(store_settings) as store:
        ada = await kept_user(store)
        with locked(store_settings, postgres):
            with pytest.raises(StoreError, match="is locked: another"):
                await kept_user(store, "bob")
            assert await store.users.by_name("ada") == ada
        await kept_user(store, "bob")
        assert len(await store.users.list()) == 2


async def test_writers_wait_for_each_other(store_settings: Settings) -> None:
    async with await Store.open(store_settings) as one, await Store.open(store_settings) as other:
        names = [f"user{number:02}" for number in range(20)]
        await asyncio.gather(
            *(kept_user(store, name) for store, name in zip((one, other) * 10, names, strict=True))
        )
        assert [user.name for user in await one.users.list()] == names


async def test_sqlite_that_another_has_for_itself_is_named(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "hutch.db", isolation_level=None)) as other:
        other.executescript("PRAGMA locking_mode = EXCLUSIVE; CREATE TABLE theirs (x); BEGIN EXCLUSIVE;")
        with pytest.raises(StoreError, match=r"hutch\.db: is locked"):
            await Sqlite.open(tmp_path, SOON)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_sqlite_file_that_goes_away_is_noticed_rather_than_written_to(
    tmp_path: Path, replaced: bool
) -> None:
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        await kept_user(store)
        (tmp_path / "hutch.db").rename(tmp_path / "aside.db")
        if replaced:
            (tmp_path / "hutch.db").write_bytes(b"")
        for work in (store.users.by_name("ada"), store.users.list(), store.users.add(a_user("bob"))):
            with pytest.raises(StoreError, match="removed or replaced while it was in use"):
                await work


FILL = """
import asyncio
from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store.rows import Ability, User, new_id, now
from hutch.store.store import Store

async def main():
    async with await Store.open(Settings(home="/small")) as store:
        user = User(id=new_id(), name="ada", data_key="", created_at=now())
        await store.users.add(user)
        kept = 0
        text = "x" * 50_000
        try:
            while kept < 1000:
                more = {"document": text, "created_at": now(), "updated_at": now()}
                ability = Ability(ability_id=f"a{kept:04}", owner_id=user.id, name="n", **more)
                await store.abilities.put(ability)
                kept += 1
        except StoreError as error:
            print(error)
        assert 0 < kept < 1000
        found = await store.abilities.list(user.id)
        assert [each.document for each in found] == [text] * kept
        assert [len(await store.abilities.versions(each.ability_id, user.id)) for each in found] == [1] * kept
    async with await Store.open(Settings(home="/small")) as store:
        assert len(await store.abilities.list(user.id)) == kept
        print("kept")

asyncio.run(main())
"""


def test_full_disk_is_named_and_all_that_was_kept_stays() -> None:
    place = [
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
        [*place, "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, kept = done.stdout.splitlines()
    assert said == "/mnt/small/hutch.db: cannot be written: the disk is full. Make room on it."
    assert kept == "kept"


async def test_what_postgres_says_of_its_disk_is_passed_on(postgres: databases.Server) -> None:
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
            await kept_user(store)
        assert "SECRET" not in str(caught.value)


async def test_postgres_that_goes_and_comes_back_is_used_again_at_once(postgres: databases.Server) -> None:
    async with await Store.open(Settings(database_url=postgres.new_database())) as store:
        await asyncio.gather(*(kept_user(store, f"user{number}") for number in range(8)))
        postgres.stop()
        try:
            for work in (store.users.list(), store.users.add(a_user())):
                with pytest.raises(StoreError, match=r"cannot be reached"):
                    await work
        finally:
            postgres.start()
        await kept_user(store)
        assert len(await store.users.list()) == 9


async def test_connections_that_the_server_ended_are_replaced_unnoticed(postgres: databases.Server) -> None:
    url = postgres.new_database()
    async with await Store.open(Settings(database_url=url)) as store:
        await asyncio.gather(*(kept_user(store, f"user{number}") for number in range(8)))
        with postgres.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'hutch'"
            )
        await asyncio.gather(*(kept_user(store, f"more{number}") for number in range(8)))
        assert len(await store.users.list()) == 16


async def test_caller_that_gives_up_leaves_the_store_as_good_as_before(store: Store) -> None:
    for number in range(20):
        task = asyncio.create_task(kept_user(store, f"user{number}"))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await kept_user(store)
    assert await store.users.by_name("ada") is not None


async def test_closed_store_says_so(store_settings: Settings) -> None:
    store = await Store.open(store_settings)
    await store.close()
    await store.close()
    for work in (store.users.by_name("ada"), store.users.list(), store.users.add(a_user())):
        with pytest.raises(StoreError, match="is closed"):
            await work


async def test_files_and_threads_go_with_the_store(store_settings: Settings) -> None:
    before, threads = opened(), working()
    for number in range(5):
        async with await Store.open(store_settings) as store:
            await kept_user(store, f"user{number}")
            await store.users.list()
    gc.collect()
    assert opened() == before
    # They are told to end, and nobody waits for them.
    until(lambda: working() <= threads)


async def test_store_is_closed_to_the_end_though_whoever_closes_it_gives_up(store_settings: Settings) -> None:
    before, threads = opened(), working()
    store = await Store.open(store_settings)
    await store.later.close()
    database = store._database
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    async with asyncio.timeout(PATIENCE):
        while opened() != before or working() - threads:  # noqa: ASYNC110 - nobody tells of files and threads
            await asyncio.sleep(0.01)
    with pytest.raises(StoreError, match="is closed"):
        await store.users.list()


def working() -> set[threading.Thread]:
    """The threads of stores that this process has."""
    return {each for each in threading.enumerate() if each.name.startswith("hutch-store")}


def opened() -> list[str]:
    """What this process has open of a store: files by name, and sockets."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(name for name in found if "hutch.db" in name or name.startswith("socket"))
