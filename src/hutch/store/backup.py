"""Backups: all rows of a database in one compressed file, independent of the backend.

The file is gzip of JSON lines: a header, then for each table its name with its columns, then its rows, and at
the end the number of rows of each table. So a truncated file is detected, and a backup of SQLite can be
restored into PostgreSQL.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from hutch._version import __version__
from hutch.errors import StoreError
from hutch.settings import Settings
from hutch.store.backends.base import Database, TableRows, Values
from hutch.store.models import now
from hutch.store.store import Store, open_database

FORMAT = 1
# Order in which a backup is restored: a table comes after the tables that its foreign keys refer to.
TABLES = (
    "meta",
    "users",
    "api_keys",
    "credentials",
    "quotas",
    "usage_days",
    "abilities",
    "ability_versions",
    "ability_words",
    "user_groups",
    "group_members",
    "ability_shares",
    "runs",
    "run_contents",
    "run_targets",
    "flows",
    "flow_versions",
    "flow_runs",
    "flow_journal",
    "flow_requests",
    "checkpoints",
    "checkpoint_parts",
    "pending_calls",
    "recorded_calls",
    "stored_values",
    "stored_value_parts",
    "sessions",
    "session_parts",
    "queued_runs",
    "webhook_deliveries",
    "webhook_secrets",
    "saved_scripts",
    "schedules",
    "triggers",
)
# Tables that are not in a backup: the schema's own history, counters of the last minutes, runs in progress,
# and clients that are connected.
OMITTED_TABLES = ("migrations", "rate_limits", "running_runs", "run_followers", "followed_events")
_BATCH_ROWS = 500


class BackupHeader(NamedTuple):
    hutch: str
    schema: int
    created_at: str


class Backup(NamedTuple):
    """A complete backup: its header, and the number of rows by table."""

    header: BackupHeader
    counts: dict[str, int]


async def write_backup(database: Database, path: Path) -> Backup:
    """Writes a consistent snapshot to a new file that only this user can read. Servers may run meanwhile.

    Raises StoreError if the file exists or cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with _create_private(unfinished, path) as file:
            backup = await _write(database, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}.") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return backup


def _create_private(file: Path, path: Path) -> IO[bytes]:
    if os.path.lexists(path):
        raise StoreError(f"{path}: exists already.", remedy="Choose another name, or remove the file.")
    # Use O_EXCL, because other users who can write to the folder may already have created the file, or a link
    # to another file.
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


async def _write(database: Database, file: IO[bytes]) -> Backup:
    header = BackupHeader(__version__, await database.schema_version(), now())
    counts: Counter[str] = Counter()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, filename="") as out:

        def write_line(value: object) -> None:
            out.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

        def write_rows(table: str, columns: Sequence[str], rows: list[Values]) -> None:
            if table not in counts:
                write_line({"table": table, "columns": columns})
            counts[table] += len(rows)
            for row in rows:
                write_line(row)

        write_line({"hutch_backup": FORMAT, **header._asdict()})
        await database.export_tables(TABLES, write_rows)
        write_line({"end": counts})
    return Backup(header, dict(counts))


def read_backup(path: Path) -> Backup:
    """Reads the whole file and checks that it is complete. Raises StoreError."""
    with _Reader(path) as reader:
        counts: Counter[str] = Counter()
        for rows in reader.tables():
            counts[rows.table] += len(rows.rows)
        if counts != Counter(reader.end):
            raise StoreError(f"{path}: its rows do not match the numbers at its end; it is damaged.")
        return Backup(reader.header, dict(reader.end))


async def restore_backup(settings: Settings, path: Path) -> Backup:
    """Restores a backup into an empty database. If anything fails, nothing is restored. Raises StoreError."""
    backup = read_backup(path)
    database = await open_database(settings, schema=backup.header.schema)
    try:
        if await database.schema_version() != backup.header.schema:
            raise StoreError(
                "The database was made by another version of Hutch than the backup.", remedy=_EMPTY_REMEDY
            )
        for table in backup.counts:
            if await database.read(f"SELECT 1 FROM {table} LIMIT 1"):
                raise StoreError(
                    f"The database is not empty: it has rows in {table!r}.", remedy=_EMPTY_REMEDY
                )
        with _Reader(path) as reader:
            await database.import_tables(reader.tables())
    finally:
        await database.close()
    # Opening the store applies the migrations that are newer than the backup.
    await (await Store.open(settings)).close()
    return backup


_EMPTY_REMEDY = "Restore into a new HUTCH_HOME or a new database."


class _Reader:
    """Parses a backup file, row by row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.end: dict[str, int] = {}

    def __enter__(self) -> _Reader:
        try:
            self._file = gzip.open(self._path, "rb")
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be read: {error.strerror}.") from None
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tables(self) -> Iterator[TableRows]:
        """Yields the rows in batches. Afterwards, `end` has the number of rows of each table, as stated at
        the end of the file.
        """
        table, columns, rows = "", (), []  # type: tuple[str, tuple[str, ...], list[Values]]
        while True:
            line = self._line()
            if isinstance(line, list) and table and len(line) == len(columns):
                rows.append(tuple(line))
                if len(rows) >= _BATCH_ROWS:
                    yield TableRows(table, columns, rows)
                    rows = []
                continue
            if rows:
                yield TableRows(table, columns, rows)
                rows = []
            match line:
                case {"table": str(name), "columns": [*names]} if name in TABLES and all(
                    isinstance(each, str) and each.isidentifier() for each in names
                ):
                    table, columns = name, tuple(names)
                # Only known tables are accepted, because the names become part of SQL. Tables without rows
                # may be missing.
                case {"end": dict(counts)} if counts.keys() <= {*TABLES}:
                    self.end = counts
                    self._check_end()
                    return
                case _:
                    raise self._damaged("an unexpected line")

    def _check_end(self) -> None:
        """Reads up to the end of the file, where gzip checks its checksum."""
        try:
            has_more = bool(self._file.read(1))
        except (OSError, EOFError, zlib.error):
            raise self._damaged("a wrong checksum") from None
        if has_more:
            raise self._damaged("more data after its end")

    def _header(self) -> BackupHeader:
        match self._line():
            case {"hutch_backup": 1, "hutch": str(hutch), "schema": int(schema), "created_at": str(at)}:
                return BackupHeader(hutch, schema, at)
            case {"hutch_backup": number}:
                raise StoreError(
                    f"{self._path}: has format {number!r}, and this Hutch reads {FORMAT}.",
                    remedy="Restore it with the version of Hutch that made it, or a newer one.",
                )
            case _:
                raise self._damaged("no header")

    def _line(self) -> Any:
        try:
            line = self._file.readline()
            if not line:
                raise self._damaged("no end")
            return json.loads(line)
        except (OSError, EOFError, zlib.error, ValueError, RecursionError):
            raise self._damaged("a part that cannot be decoded") from None

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"{self._path}: is not a complete backup of Hutch: it has {what}.",
            remedy="Use another copy of the backup.",
        )
