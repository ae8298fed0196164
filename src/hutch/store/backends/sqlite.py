"""SQLite backend with one connection for writes, one for scans, and one for quick reads on the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from hutch import errors
from hutch.errors import SearchTimeout, StoreError
from hutch.store.backends import migrate
from hutch.store.backends.base import (
    CLOCK_FUNCTION,
    EXPORT_ROWS,
    OnRows,
    Parameters,
    SqlBatch,
    SqlStatement,
    TableRows,
    Values,
    WriteResult,
    check_storable,
    expand_lists,
    nullify_unstorable,
)
from hutch.store.backends.errors import from_sqlite
from hutch.store.models import now

FILE = "hutch.db"
MIN_SQLITE_VERSION = (3, 35, 0)  # first version with RETURNING
LOCK_SECONDS = 5.0
"""Timeout for the write lock if another process holds it."""
PROGRESS_STEPS = 10_000
"""Number of steps of SQLite's virtual machine between two checks of the time limit. They take less than a
millisecond.
"""

T = TypeVar("T")


class SqliteDatabase:
    """SQLite file in WAL mode. Writers wait for each other, readers never wait."""

    def __init__(self, file: Path, lock_seconds: float = LOCK_SECONDS) -> None:
        self._file = file
        self._path = str(file)
        self._lock_seconds = lock_seconds
        self._inode = 0
        self._schema: int | None = None
        self._closed = False
        self._connections: list[sqlite3.Connection] = []
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="hutch-store-write")
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="hutch-store-read")

    @classmethod
    async def open(
        cls, home: Path, lock_seconds: float = LOCK_SECONDS, schema: int | None = None
    ) -> SqliteDatabase:
        """Opens or creates the file and applies missing migrations, up to `schema`. Raises StoreError."""
        database = cls(home / FILE, lock_seconds)
        database._schema = schema
        try:
            await database._run_in(database._writer_thread, database._open)
        except BaseException:
            # If this call was cancelled, `_open` still runs in the writer thread. The next task of that
            # thread closes the connections.
            database._writer_thread.submit(database._close_connections)
            database._writer_thread.shutdown(wait=False)
            database._reader_thread.shutdown(wait=False)
            raise
        return database

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        """Reads on the event loop, because an indexed read takes less time than waking up a thread."""
        self._check_file()
        bound = expand_lists(sql, nullify_unstorable(parameters))
        try:
            return self._loop_reader.execute(*bound).fetchall()
        except sqlite3.Error as error:
            if not _is_locked(error):
                raise from_sqlite(error, self._file) from error
        # The database is locked, so wait in the reader thread.
        return await self.scan(sql, **parameters)

    async def scan(self, sql: str, **parameters: Any) -> list[Values]:
        self._check_file()
        bound = expand_lists(sql, nullify_unstorable(parameters))

        def work() -> list[Values]:
            return self._reader.execute(*bound).fetchall()

        return await self._run_in(self._reader_thread, work)

    async def search(self, sql: str, max_seconds: float, **parameters: Any) -> list[Values]:
        self._check_file()
        bound = expand_lists(sql, nullify_unstorable(parameters))

        def work() -> list[Values]:
            deadline = time.monotonic() + max_seconds
            self._reader.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
            try:
                return self._reader.execute(*bound).fetchall()
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                    raise SearchTimeout from None
                raise
            finally:
                self._reader.set_progress_handler(None, 0)

        return await self._run_in(self._reader_thread, work)

    async def write(self, *statements: SqlStatement) -> list[WriteResult]:
        self._check_file()
        bound = [expand_lists(sql, check_storable(parameters)) for sql, parameters in statements]

        def work() -> list[WriteResult]:
            return [_write_result(self._writer.execute(*statement)) for statement in bound]

        return await self._run_in(self._writer_thread, lambda: self._transaction(work))

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        self._check_file()
        checked = [check_storable(row) for row in rows]

        def work() -> int:
            return self._writer.executemany(sql, checked).rowcount

        return await self._run_in(self._writer_thread, lambda: self._transaction(work))

    async def write_batches(self, *batches: SqlBatch) -> None:
        self._check_file()
        checked = [(sql, [check_storable(row) for row in rows]) for sql, rows in batches if rows]

        def work() -> None:
            for sql, rows in checked:
                self._writer.executemany(sql, rows)

        await self._run_in(self._writer_thread, lambda: self._transaction(work))

    async def notify(self, channel: str) -> None:
        pass

    async def listen(self, listeners: Mapping[str, Callable[[], None]]) -> None:
        await asyncio.get_running_loop().create_future()

    async def schema_version(self) -> int:
        return int((await self.read(migrate.SELECT_LATEST))[0][0])

    async def export_tables(self, tables: Sequence[str], on_rows: OnRows) -> None:
        def work() -> None:
            self._reader.execute("BEGIN")
            try:
                for table in tables:
                    kinds = {row[1]: row[2] for row in self._reader.execute(f"PRAGMA table_info({table})")}
                    flags = [index for index, kind in enumerate(kinds.values()) if kind == "BOOLEAN"]
                    cursor = self._reader.execute(f"SELECT * FROM {table}")
                    rows = cursor.fetchmany(EXPORT_ROWS)
                    on_rows(table, [*kinds], _with_booleans(rows, flags))
                    while rows := cursor.fetchmany(EXPORT_ROWS):
                        on_rows(table, [*kinds], _with_booleans(rows, flags))
            finally:
                self._reader.execute("ROLLBACK")

        await self._run_in(self._reader_thread, work)

    async def import_tables(self, batches: Iterable[TableRows]) -> None:
        def work() -> None:
            for batch in batches:
                self._writer.executemany(batch.insert_sql, batch.parameters)

        await self._run_in(self._writer_thread, lambda: self._transaction(work))

    async def close(self) -> None:
        """Waits for running queries, then closes the connections."""
        if self._closed:
            return
        self._closed = True
        # Shield the shutdown, so that it completes even if the caller is cancelled.
        await asyncio.shield(asyncio.ensure_future(self._shut_down()))

    async def _shut_down(self) -> None:
        try:
            await self._run_in(self._reader_thread, self._reader.close)
            await self._run_in(self._writer_thread, self._close_connections)
        finally:
            self._reader_thread.shutdown(wait=False)
            self._writer_thread.shutdown(wait=False)

    async def _run_in(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise from_sqlite(error, self._file) from error

    # --- in the writer thread ---

    def _transaction(self, work: Callable[[], T]) -> T:
        # IMMEDIATE takes the write lock at the start. A transaction that starts with a read and then writes
        # would fail instead of waiting for another writer.
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
            wanted = ".".join(map(str, MIN_SQLITE_VERSION))
            raise StoreError(
                f"Python's SQLite is {sqlite3.sqlite_version}, and Hutch needs {wanted}.",
                remedy="Use a Python with a newer one, or PostgreSQL (HUTCH_DATABASE_URL).",
            )
        self._create_file()
        self._writer = self._connect(self._lock_seconds)
        # Make SQLite overwrite deleted data in the file.
        self._writer.execute("PRAGMA secure_delete = ON")
        self._use_wal()
        self._migrate()
        self._reader = self._connect(self._lock_seconds)
        self._loop_reader = self._connect(0)

    def _create_file(self) -> None:
        """Creates the file with access for its owner only. SQLite gives the WAL files the same mode.

        Never opens an existing file. Closing it would drop the POSIX locks that this process's connections
        hold on the file. If another process then closed its last connection, it would delete the WAL while
        these connections still use it.
        """
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                if self._file.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
                if not os.access(self._file, os.R_OK | os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
            self._inode = self._file.stat().st_ino
        except OSError as error:
            obstacle = errors.explain_home_error(error)
            raise StoreError(
                f"{self._file}: cannot be opened: {obstacle or error.strerror}.",
                remedy=errors.HOME_REMEDY if obstacle else None,
            ) from None

    def _connect(self, lock_seconds: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file,
            timeout=lock_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        self._connections.append(connection)
        # With FULL, a commit is on disk when it returns, even if the machine crashes. That costs little,
        # because few rows are written one by one, and run records are written in batches.
        connection.executescript(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
        )
        connection.create_function(CLOCK_FUNCTION, 0, lambda: time.time_ns() // 1_000_000)
        return connection

    def _use_wal(self) -> None:
        """Switches the file to WAL mode. Retries if several processes start at the same time, because SQLite
        does not wait for a lock here.
        """
        deadline = time.monotonic() + self._lock_seconds
        mode = ""
        while not mode:
            try:
                mode = self._writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if not _is_locked(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise StoreError(
                f"{self._file}: this file system does not support SQLite's write-ahead log.",
                remedy="Set HUTCH_HOME to a folder on a local disk, or use PostgreSQL (HUTCH_DATABASE_URL).",
            )

    def _migrate(self) -> None:
        self._transaction(lambda: self._writer.execute(migrate.MIGRATIONS_TABLE))
        while self._transaction(self._next_migration):
            pass

    def _next_migration(self) -> bool:
        latest = self._writer.execute(migrate.SELECT_LATEST).fetchone()[0] or 0
        migration = migrate.next_migration(latest, str(self._file), self._schema)
        if migration is None:
            return False
        for statement in migration.statements:
            self._writer.execute(statement)
        applied = {"number": migration.number, "name": migration.name, "applied_at": now()}
        self._writer.execute(migrate.INSERT_APPLIED, applied)
        return True

    def _close_connections(self) -> None:
        """Closes the readers first and the writer last, because SQLite checkpoints the WAL when the last
        connection is closed.
        """
        while self._connections:
            self._connections.pop().close()

    def _check_file(self) -> None:
        """Raises StoreError if the file was removed or replaced. SQLite would continue to use the removed
        file and lose every write.
        """
        if self._closed:
            raise StoreError(f"{self._file}: is closed.")
        try:
            is_there = os.stat(self._path).st_ino == self._inode  # noqa: PTH116 - Path.stat is much slower
        except OSError:
            is_there = False
        if not is_there:
            raise StoreError(
                f"{self._file}: has been removed or replaced while it was in use.",
                remedy="Start Hutch again.",
            )


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _write_result(cursor: sqlite3.Cursor) -> WriteResult:
    rows = cursor.fetchall()
    # If a statement returns rows, SQLite does not set rowcount, so count these rows.
    return WriteResult(rows, max(cursor.rowcount, len(rows)))


def _with_booleans(rows: list[Values], flags: list[int]) -> list[Values]:
    """Converts the columns `flags`, which SQLite stores as numbers, to booleans."""
    if not flags:
        return rows
    return [
        tuple(bool(value) if index in flags else value for index, value in enumerate(row)) for row in rows
    ]
