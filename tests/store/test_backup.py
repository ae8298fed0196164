"""Backups of SQLite and PostgreSQL. Each backup is restored into SQLite and into PostgreSQL."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.factories import add_runs, make_ability, make_run
from tests.support import databases

from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store import backup
from hutch.store.models import now
from hutch.store.store import Store, open_database
from hutch.vault.flow_keys import open_store
from hutch.vault.vault import Vault

Rows = dict[str, list[tuple[Any, ...]]]
NewSettings = Callable[[], Settings]


@pytest.fixture(params=["sqlite", "postgres"])
def new_settings(request: pytest.FixtureRequest, tmp_path: Path) -> NewSettings:
    """Creates settings for a new, empty database."""
    server: databases.PostgresServer | None = None
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")

    def create() -> Settings:
        url = None if server is None else server.new_database()
        return Settings(home=str(tmp_path / os.urandom(4).hex()), database_url=url)

    return create


async def fill(settings: Settings) -> None:
    async with await open_store(settings) as store:
        vault = await Vault.open(store, settings.home_path, {})
        user = await vault.add_user("ada")
        await vault.issue_key(user, "laptop")
        await vault.put_credential(user, "api.test", "header", "Authorization", "Bearer secret-value-1")
        await store.abilities.put(make_ability(user, shared=True, description="Grüße"))
        await add_runs(store, [make_run(label=f"run {number}") for number in range(1_200)])
        await store.flows.put("ada", "deploy", '{"graph": {}}', now())


async def all_rows(settings: Settings) -> Rows:
    rows: Rows = {table: [] for table in backup.TABLES}
    database = await open_database(settings)
    await database.export_tables(backup.TABLES, lambda table, _, batch: rows[table].extend(batch))
    await database.close()
    return {table: sorted(batch, key=repr) for table, batch in rows.items()}


async def back_up(settings: Settings, path: Path) -> backup.Backup:
    async with await Store.open(settings) as store:
        return await store.write_backup(path)


async def test_backup_can_be_restored_into_either_database(
    store_settings: Settings, new_settings: NewSettings, tmp_path: Path
) -> None:
    await fill(store_settings)
    written = await back_up(store_settings, tmp_path / "b")
    target = new_settings()
    assert await backup.restore_backup(target, tmp_path / "b") == written
    assert written.counts["runs"] == 1_200
    assert await all_rows(target) == await all_rows(store_settings)


async def test_restored_secrets_can_be_decrypted_with_the_same_master_key(
    store_settings: Settings, new_settings: NewSettings, tmp_path: Path
) -> None:
    await fill(store_settings)
    await back_up(store_settings, tmp_path / "b")
    target = new_settings()
    await backup.restore_backup(target, tmp_path / "b")
    target.home_path.mkdir(exist_ok=True)
    (target.home_path / "master.key").write_bytes((store_settings.home_path / "master.key").read_bytes())
    (target.home_path / "master.key").chmod(0o600)
    async with await open_store(target) as store:
        vault = await Vault.open(store, target.home_path, {})
        user = await store.users.by_name("ada")
        assert user is not None
        [credential] = await vault.secrets(user, ["api.test"])
        assert credential.value == "Bearer secret-value-1"
        assert (await store.flows.get("ada", "deploy")).document == '{"graph": {}}'  # type: ignore[union-attr]


def names_with_b(folder: Path) -> list[str]:
    return [file.name for file in folder.glob("*b*")]


async def test_backup_has_no_secret_and_only_its_owner_can_read_it(
    store_settings: Settings, tmp_path: Path
) -> None:
    await fill(store_settings)
    await back_up(store_settings, tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert b"secret-value-1" not in gzip.decompress((tmp_path / "b").read_bytes())
    assert names_with_b(tmp_path) == ["b"]


async def test_files_that_others_have_prepared_are_not_used(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "home"))
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "precious").write_text("precious")
    (shared / "a.unfinished").symlink_to(tmp_path / "precious")
    (shared / "b.unfinished").touch(0o666)
    (shared / "c").symlink_to(tmp_path / "nowhere")
    for name in "ab":
        await back_up(settings, shared / name)
        assert not (shared / name).is_symlink()
        assert (shared / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="exists already"):
        await back_up(settings, shared / "c")
    assert (tmp_path / "precious").read_text() == "precious"


async def test_every_table_is_in_the_backup_or_omitted_on_purpose(store_settings: Settings) -> None:
    database = await open_database(store_settings)
    sql = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        if store_settings.database_url is None
        else "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    )
    tables = {row[0] for row in await database.read(sql)}
    await database.close()
    assert tables == {*backup.TABLES, *backup.OMITTED_TABLES}


async def test_existing_file_is_not_replaced(store_settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("precious")
    with pytest.raises(StoreError, match="exists already"):
        await back_up(store_settings, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "precious"


async def test_database_with_data_is_not_overwritten(store_settings: Settings, tmp_path: Path) -> None:
    await fill(store_settings)
    await back_up(store_settings, tmp_path / "b")
    before = await all_rows(store_settings)
    with pytest.raises(StoreError, match="not empty"):
        await backup.restore_backup(store_settings, tmp_path / "b")
    assert await all_rows(store_settings) == before


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def without_end(data: bytes) -> bytes:
    return gzip.compress(b"".join(gzip.decompress(data).splitlines(keepends=True)[:-1]))


def without_a_row(data: bytes) -> bytes:
    lines = gzip.decompress(data).splitlines(keepends=True)
    lines.remove(next(line for line in lines if line.startswith(b"[")))
    return gzip.compress(b"".join(lines))


def with_another_table(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'{"table":"users"', b'{"table":"users; DROP"'))


def with_sql_as_name_of_an_empty_table(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'{"end":{', b'{"end":{"(SELECT randomblob(9))":0,'))


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        flip,
        without_end,
        without_a_row,
        with_another_table,
        with_sql_as_name_of_an_empty_table,
        empty,
        gzip.decompress,
        gzip.compress,
    ],
)
async def test_damaged_backup_is_refused_before_anything_is_written(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    source, target = Settings(home=str(tmp_path / "home")), Settings(home=str(tmp_path / "new"))
    await fill(source)
    await back_up(source, tmp_path / "b")
    (tmp_path / "b").write_bytes(damage((tmp_path / "b").read_bytes()))
    with pytest.raises(StoreError, match="b: "):
        await backup.restore_backup(target, tmp_path / "b")
    assert not target.home_path.exists()


async def test_backup_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    source, target = Settings(home=str(tmp_path / "home")), Settings(home=str(tmp_path / "new"))
    await back_up(source, tmp_path / "b")
    header, *lines = gzip.decompress((tmp_path / "b").read_bytes()).splitlines(keepends=True)
    newer = json.dumps({**json.loads(header), "schema": 99}).encode() + b"\n"
    (tmp_path / "b").write_bytes(gzip.compress(b"".join([newer, *lines])))
    with pytest.raises(StoreError, match="newer Hutch"):
        await backup.restore_backup(target, tmp_path / "b")


async def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        await backup.restore_backup(Settings(home=str(tmp_path / "home")), tmp_path / "none")
