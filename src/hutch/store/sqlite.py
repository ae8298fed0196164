"""SQLite in the home: one connection that writes, one that searches, and one for quick reads on the loop."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from hutch import home
from hutch.errors import StoreError
from hutch.store import migrating
from hutch.store.database import Changed, Parameters, Statement, Values, asked, bind, told
from hutch.store.faults import of_sqlite
from hutch.store.rows import now

FILE = "hutch.db"
OLDEST = (3, 35, 0)  # has RETURNING
WAIT_SECONDS = 5.0
"""How long to wait for another process that writes."""

T = TypeVar("T")


class Sqlite:
    """A file. Whoever writes waits for whoever else does; readers wait for nobody."""

    def __init__(self, file: Path, wait_seconds: float = WAIT_SECONDS) -> None:
        self._file = file
        self._path = str(file)
        self._wait = wait_seconds
        self._inode = 0
        self._closed = False
        self._connections: list[sqlite3.Connection] = []
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="hutch-store-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="hutch-store-read")

    @classmethod
    async def open(cls, home: Path, wait_seconds: float = WAIT_SECONDS) -> Sqlite:
        """Makes the file if there is none, and brings its tables up to date. Raises StoreError."""
        opened = cls(home / FILE, wait_seconds)
        try:
            await opened._in(opened._writing, opened._begin)
        except BaseException:
            # If whoever waits for it is cancelled, the thread goes on; then it closes what it has opened.
            opened._writing.submit(opened._end)
            opened._writing.shutdown(wait=False)
            opened._reading.shutdown(wait=False)
            raise
        return opened

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        """On the loop: a row is found in less time than a thread takes to wake up."""
        self._check_there()
        bound = bind(sql, asked(parameters))
        try:
            return self._near.execute(*bound).fetchall()
        except sqlite3.Error as error:
            if not _is_locked(error):
                raise of_sqlite(error, self._file) from error
        # Whoever has it locked is waited for elsewhere.
        return await self.scan(sql, **parameters)

    async def scan(self, sql: str, **parameters: Any) -> list[Values]:
        self._check_there()
        bound = bind(sql, asked(parameters))

        def work() -> list[Values]:
            return self._reader.execute(*bound).fetchall()

        return await self._in(self._reading, work)

    async def write(self, *statements: Statement) -> list[Changed]:
        self._check_there()
        bound = [bind(each.sql, told(each.parameters)) for each in statements]

        def work() -> list[Changed]:
            return [_changed(self._writer.execute(*each)) for each in bound]

        return await self._in(self._writing, lambda: self._transaction(work))

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        self._check_there()
        checked = [told(row) for row in rows]

        def work() -> int:
            return self._writer.executemany(sql, checked).rowcount

        return await self._in(self._writing, lambda: self._transaction(work))

    async def close(self) -> None:
        """After what is being written."""
        if self._closed:
            return
        self._closed = True
        # All of it, also if whoever closes it is cancelled meanwhile.
        await asyncio.shield(asyncio.ensure_future(self._let_go()))

    async def _let_go(self) -> None:
        try:
            # After what is being read.
            await self._in(self._reading, self._reader.close)
            await self._in(self._writing, self._end)
        finally:
            self._reading.shutdown(wait=False)
            self._writing.shutdown(wait=False)

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise of_sqlite(error, self._file) from error

    # --- in the writing thread ---

    def _transaction(self, work: Callable[[], T]) -> T:
        # From the first: a transaction that reads and then wants to write could not wait for another.
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            done = work()
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        return done

    def _begin(self) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise StoreError(
                f"Python's SQLite is {sqlite3.sqlite_version}, and Hutch needs {wanted}.",
                remedy="Use a Python with a newer one, or PostgreSQL (HUTCH_DATABASE_URL).",
            )
        self._make()
        self._writer = self._connect(self._wait)
        # What was overwritten or forgotten is not left in the file.
        self._writer.execute("PRAGMA secure_delete = ON")
        self._use_wal()
        self._migrate()
        self._reader = self._connect(self._wait)
        self._near = self._connect(0)

    def _make(self) -> None:
        """Only its owner may read it; SQLite gives the files beside it the same rights."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._inode = self._file.stat().st_ino
        except OSError as error:
            obstacle = home.obstacle(error)
            raise StoreError(
                f"{self._file}: cannot be opened: {obstacle or error.strerror}.",
                remedy=home.REMEDY if obstacle else None,
            ) from None

    def _connect(self, wait_seconds: float) -> sqlite3.Connection:
        made = sqlite3.connect(
            self._file,
            timeout=wait_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        self._connections.append(made)
        # FULL: a commit is on the disk when it returns, also if the machine goes down. It costs little:
        # few things are written one by one, and of runs many at once.
        made.executescript(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
        )
        return made

    def _use_wal(self) -> None:
        """Others who start at the same time do the same, and for this SQLite does not wait by itself."""
        deadline = time.monotonic() + self._wait
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
                f"{self._file}: this file system does not carry SQLite's write-ahead log.",
                remedy="Set HUTCH_HOME to a folder on a local disk, or use PostgreSQL (HUTCH_DATABASE_URL).",
            )

    def _migrate(self) -> None:
        self._transaction(lambda: self._writer.execute(migrating.TABLE))
        while self._transaction(self._next_migration):
            pass

    def _next_migration(self) -> bool:
        latest = self._writer.execute(migrating.LATEST).fetchone()[0] or 0
        step = migrating.after(latest, str(self._file))
        if step is None:
            return False
        for statement in step.statements:
            self._writer.execute(statement)
        applied = {"number": step.number, "name": step.name, "applied_at": now()}
        self._writer.execute(migrating.APPLIED, applied)
        return True

    def _end(self) -> None:
        """The last that is opened is the first that is closed: the one that writes tidies up."""
        while self._connections:
            self._connections.pop().close()

    def _check_there(self) -> None:
        """SQLite goes on in a file that was removed, and all that it writes there is lost."""
        if self._closed:
            raise StoreError(f"{self._file}: is closed.")
        try:
            there = os.stat(self._path).st_ino == self._inode  # noqa: PTH116 - a path's own takes far longer
        except OSError:
            there = False
        if not there:
            raise StoreError(
                f"{self._file}: has been removed or replaced while it was in use.",
                remedy="Start Hutch again.",
            )


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _changed(cursor: sqlite3.Cursor) -> Changed:
    rows = cursor.fetchall()
    # SQLite counts what was changed only where nothing is returned.
    return Changed(rows, max(cursor.rowcount, len(rows)))
