from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.store.factories import add_runs, add_user, make_ability, make_run
from tests.support import databases
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.errors import SettingError, StoreError
from hutch.settings import Settings, load_settings
from hutch.store.backends import migrate
from hutch.store.backends.migrate import Migration
from hutch.store.store import Store

MIGRATIONS = migrate.migrations()
SetMigrations = Callable[..., None]


@pytest.fixture
def store_settings(new_store_settings: Settings) -> Settings:
    return new_store_settings


@pytest.fixture
def set_migrations(monkeypatch: pytest.MonkeyPatch) -> SetMigrations:
    """Replaces the list of migrations."""

    def have(*migrations: Migration) -> None:
        monkeypatch.setattr(migrate, "migrations", lambda: migrations)

    return have


async def version(store: Store) -> int:
    return int((await store._database.read(migrate.SELECT_LATEST))[0][0])


async def test_new_database_has_all_tables_and_its_version(store_settings: Settings) -> None:
    async with await Store.open(store_settings) as store:
        assert await version(store) == len(MIGRATIONS)
        rows = await store._database.read("SELECT number, name, applied_at FROM migrations ORDER BY number")
    assert [(number, name) for number, name, _ in rows] == [(each.number, each.name) for each in MIGRATIONS]
    assert all(at.endswith("Z") for _, _, at in rows)


@pytest.mark.parametrize("number", range(len(MIGRATIONS)))
async def test_every_earlier_version_is_migrated_with_its_data(
    store_settings: Settings, set_migrations: SetMigrations, number: int
) -> None:
    set_migrations(*MIGRATIONS[:number])
    async with await Store.open(store_settings) as store:
        user = await add_user(store) if number else None
        if user is not None:
            await store.abilities.put(make_ability(user))
    set_migrations(*MIGRATIONS)
    async with await Store.open(store_settings) as store:
        assert await version(store) == len(MIGRATIONS)
        if user is not None:
            assert await store.users.list() == [user]
            assert len(await store.abilities.search(user.id, "user")) == 1
        run = make_run()
        await add_runs(store, [run])
        assert await store.runs.list("ada") == [run]


async def test_failed_migration_is_rolled_back(
    store_settings: Settings, set_migrations: SetMigrations
) -> None:
    broken = Migration(
        len(MIGRATIONS) + 1, "broken", ("CREATE TABLE half (x TEXT)", "INSERT INTO nowhere VALUES (1)")
    )
    set_migrations(*MIGRATIONS, broken)
    with pytest.raises(StoreError):
        await Store.open(store_settings)
    fixed = Migration(len(MIGRATIONS) + 1, "mended", ("CREATE TABLE half (x TEXT)",))
    set_migrations(*MIGRATIONS, fixed)
    async with await Store.open(store_settings) as store:
        assert await version(store) == len(MIGRATIONS) + 1


async def test_database_of_a_newer_hutch_is_rejected_and_unchanged(
    store_settings: Settings, set_migrations: SetMigrations
) -> None:
    set_migrations(*MIGRATIONS, Migration(len(MIGRATIONS) + 1, "later", ("CREATE TABLE later (x TEXT)",)))
    async with await Store.open(store_settings) as store:
        user = await add_user(store)
    set_migrations(*MIGRATIONS)
    with pytest.raises(
        StoreError,
        match=rf"newer Hutch: .* version {len(MIGRATIONS) + 1},"
        rf" and this Hutch knows versions up to {len(MIGRATIONS)}\.",
    ):
        await Store.open(store_settings)
    set_migrations(*MIGRATIONS, Migration(len(MIGRATIONS) + 1, "later", ()))
    async with await Store.open(store_settings) as store:
        assert await store.users.list() == [user]


OPEN = """
import asyncio, sys
from hutch.settings import load_settings
from hutch.store.models import User, new_id, now
from hutch.store.store import Store

async def main():
    print("ready", flush=True)
    name = sys.stdin.readline().strip()
    async with await Store.open(load_settings()) as store:
        await store.users.add(User(id=new_id(), name=name, data_key="", created_at=now()))

asyncio.run(main())
"""


def test_processes_starting_together_all_find_the_tables(
    store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_HOME", store_settings.home)
    monkeypatch.setenv("HUTCH_DATABASE_URL", store_settings.database_url or "")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
    for process in processes:
        with process:
            process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == 0

    async def names() -> list[str]:
        async with await Store.open(load_settings()) as store:
            return [user.name for user in await store.users.list()]

    assert asyncio.run(names()) == ["0", "1", "2", "3"]


async def test_stores_opened_together_share_their_data(store_settings: Settings) -> None:
    stores = await asyncio.gather(*(Store.open(store_settings) for _ in range(8)))
    user = await add_user(stores[0])
    assert [await store.users.by_name("ada") for store in stores] == [user] * 8
    for store in stores:
        await store.close()


async def test_cancelled_open_leaves_nothing_open(tmp_path: Path) -> None:
    async with await Store.open(Settings(home=str(tmp_path))):
        pass
    file = tmp_path / "hutch.db"
    # Count the threads first, because stores of other tests may be open.
    before = store_threads()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        # The thread in which the store waits for the lock cannot be cancelled.
        opening = asyncio.create_task(Store.open(Settings(home=str(tmp_path))))
        await asyncio.to_thread(wait_until, lambda: open_descriptors(file) > 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        other.execute("ROLLBACK")
    await asyncio.to_thread(wait_until, lambda: open_descriptors(tmp_path) == 0)
    await asyncio.to_thread(wait_until, lambda: store_threads() <= before)
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        await add_user(store)


def store_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("hutch-store")}


def open_descriptors(below: Path) -> int:
    """Counts the open descriptors of this process for a file, or for all files below a folder."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += each.readlink().is_relative_to(below)
    return count


async def test_sqlite_files_are_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    async with await Store.open(Settings(home=str(home))) as store:
        await add_user(store)
        files = {file.name: file.stat().st_mode & 0o777 for file in home.iterdir()}
    assert files == {"hutch.db": 0o600, "hutch.db-wal": 0o600, "hutch.db-shm": 0o600}
    assert home.stat().st_mode & 0o777 == 0o700


async def test_sqlite_syncs_every_commit_to_a_write_ahead_log(tmp_path: Path) -> None:
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        (changed,) = await store._database.write(databases.statement("SELECT * FROM pragma_synchronous"))
        assert changed.rows == [(2,)]
        assert await store._database.read("SELECT * FROM pragma_journal_mode") == [("wal",)]


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
async def test_file_that_is_not_a_database_is_rejected_and_unchanged(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "hutch.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"hutch\.db: is not a SQLite database, or is damaged"):
        await Store.open(Settings(home=str(tmp_path)))
    assert file.read_bytes() == content


async def test_home_that_is_not_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StoreError, match=r"home/hutch\.db: cannot be opened") as caught:
        await Store.open(Settings(home=str(tmp_path / "home")))
    assert f"{tmp_path / 'home'} is a file, not a folder." in caught.value.message
    assert caught.value.remedy == "Set HUTCH_HOME to a folder that you may write."


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ada:S3CRET@db.test/x",
        "S3CRET",
        "postgresql://ada:S3CRET@db.test:x:y/z",
        "postgresql://[S3CRET",
        "postgresql://ada:p@S3CRET@db.test/x",
        "postgresql://ada:S3CRET/1@db.test/x",
        "postgresql://ada:12/S3CRET@db.test/x",
    ],
)
async def test_invalid_url_is_rejected_and_never_shown(url: str) -> None:
    with pytest.raises(SettingError, match="database_url: expected") as caught:
        await Store.open(Settings(database_url=url))
    assert "S3CRET" not in str(caught.value)
    assert "S3CRET" not in repr(Settings(database_url=url))


async def test_unreachable_postgres_is_reported_without_the_password() -> None:
    with pytest.raises(
        StoreError, match=r"127\.0\.0\.1, port 1: cannot be reached \(Connection refused\)"
    ) as caught:
        await Store.open(Settings(database_url="postgresql://ada:S3CRET@127.0.0.1:1/x"))
    assert "S3CRET" not in str(caught.value)


async def test_wrong_postgres_password_is_reported_without_it(postgres: databases.PostgresServer) -> None:
    rules = postgres.folder / "data/pg_hba.conf"
    rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
    with postgres.connect() as connection:
        connection.execute(b"CREATE ROLE guarded LOGIN PASSWORD 'right'")
        connection.execute(b"SELECT pg_reload_conf()")
    url = f"postgresql://guarded:S3CRET@/postgres?host={postgres.folder}"

    def is_refused() -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url):
            return False
        return True

    wait_until(is_refused)  # the server reads the changed rules in the background
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        await Store.open(Settings(database_url=url))
    assert "S3CRET" not in str(caught.value)


async def test_missing_postgres_database_is_reported(postgres: databases.PostgresServer) -> None:
    url = postgres.url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError, match=r'database "nowhere" does not exist.*HUTCH_DATABASE_URL'):
        await Store.open(Settings(database_url=url))


async def test_postgres_database_with_another_encoding_is_rejected(
    postgres: databases.PostgresServer,
) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match="encoding of the database is LATIN1"):
        await Store.open(Settings(database_url=postgres.url.replace("/postgres?", "/latin?")))


def test_database_url_setting_is_read_from_its_variable() -> None:
    url = "postgresql://ada@db.test/hutch"
    assert load_settings(environ={"HUTCH_DATABASE_URL": url}).database_url == url


def test_sqlite_version_is_supported() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)
