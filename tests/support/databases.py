"""Databases for the tests: a real PostgreSQL server in a temporary folder, which ends with the test process,
and SQLite files.

Tests reuse the empty tables of earlier tests, because creating tables takes 0.2 s of CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement
from hutch.store.backends.sqlite import FILE
from hutch.store.store import open_database

USER = "hutch"
# PostgreSQL refuses to run as root.
UNPRIVILEGED_USER = "nobody"
MISSING = (
    "PostgreSQL's programs are missing: `make test` installs them where it may, or `apt install postgresql`"
)
# The result of this query changes if a test changes the definition of a table, an index, a constraint or a
# trigger.
CATALOG = """
    SELECT c.oid, c.xmin::text, a.attnum, a.xmin::text, k.oid
    FROM pg_class c
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_constraint k ON k.conrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace
    ORDER BY c.oid, a.attnum, k.oid
"""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'migrations'"


class PostgresServer:
    """A PostgreSQL server that listens on a Unix socket in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._unused: list[tuple[str, object]] = []
        """URLs and catalogs of databases with empty tables."""
        self._run(
            postgres_program("initdb"), "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C"
        )

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def new_database(self) -> str:
        """Returns the URL of a new schema, which serves as an empty database. Creating a schema is 100 times
        as fast as creating a database.
        """
        name = f"test{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}&options=-csearch_path%3D{name}"

    @contextlib.contextmanager
    def database_with_tables(self) -> Iterator[str]:
        """Yields the URL of a database with empty tables. If this test does not change the definitions of the
        tables, a later test gets the same database.
        """
        url, catalog = self._unused.pop() if self._unused else self._create_tables()
        yield url
        if self._process is None:
            return
        with self.connect(url) as connection:
            # Close all other connections. A process that a test has killed may still be connected.
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
            if connection.execute(CATALOG.encode()).fetchall() == catalog:
                tables = [name for (name,) in connection.execute(TABLES.encode())]
                # With this role, PostgreSQL does not check foreign keys, so the order of the tables does not
                # matter.
                statements = ["SET session_replication_role = replica", *map("DELETE FROM {}".format, tables)]
                connection.execute(";".join(statements).encode())
                self._unused.append((url, catalog))

    def _create_tables(self) -> tuple[str, object]:
        url = self.new_database()
        _create_tables(Settings(database_url=url))
        with self.connect(url) as connection:
            return url, connection.execute(CATALOG.encode()).fetchall()

    def connect(self, url: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(url or self.url, autocommit=True)

    def start(self) -> None:
        # In the tests, data must survive a killed process, but not a crash of the machine. So fsync is off.
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        command = [postgres_program("postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "QUIT", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._process_options()
            )
        wait_until(self._is_ready)

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stops the server. SIGINT shuts it down in order and disconnects clients. SIGQUIT
        simulates a crash.
        """
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(TIMEOUT_SECONDS)
            self._process = None

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError):
            self.connect().close()
            return True
        return False

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*command, "-D", str(self.folder / "data")],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            **self._process_options(),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _process_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED_USER)
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return options


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    # A folder with a short path, because the paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="hutch-pg-"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED_USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def create_sqlite_tables(home: Path) -> None:
    """Creates a home with a SQLite file that has empty tables."""
    home.mkdir(mode=0o700)
    file = home / FILE
    file.touch(mode=0o600)
    file.write_bytes(_sqlite_tables())


@functools.cache
def _sqlite_tables() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        _create_tables(Settings(home=home))
        return (Path(home) / FILE).read_bytes()


def _create_tables(settings: Settings) -> None:
    async def create() -> None:
        await (await open_database(settings)).close()

    # This thread already runs an event loop, so use another thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, create()).result()


def postgres_program(name: str) -> str:
    """Finds a program in PATH or in Debian's versioned folders."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4])
    )
    found = shutil.which(name) or (str(versions[-1]) if versions else None)
    assert found is not None, MISSING
    return found


def statement(sql: str) -> SqlStatement:
    return SqlStatement(sql, {})
