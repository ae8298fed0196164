"""PostgreSQL, by URL, also for several processes at once. What belongs together is one transaction."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hutch.errors import SettingError, StoreError
from hutch.store import migrating
from hutch.store.connections import Connection, Connections
from hutch.store.database import Changed, Parameters, Statement, Values, asked, bind, for_psycopg, told
from hutch.store.faults import of_postgres
from hutch.store.rows import now

OLDEST = 13
MOST_CONNECTIONS = 8
CONNECT_SECONDS = 5
WAIT_SECONDS = 5.0
"""How long to wait for another session that has something locked."""
ANSWER_SECONDS = 30.0
MIGRATE_SECONDS = 60.0
# Any number, as long as every Hutch has the same.
_MIGRATING = 0x48555443

# What a URL has in these places if a password in it was not written as it has to be.
_HOST = re.compile(r"[^@\s]*")
_PORT = re.compile(r"[\d,]*")


class Postgres:
    """A database that other processes, also on other machines, may share."""

    def __init__(self, where: str, options: dict[str, Any], wait_seconds: float = WAIT_SECONDS) -> None:
        self._where = where
        self._options = options
        self._wait = wait_seconds
        self._connections = Connections(self._connect, MOST_CONNECTIONS)

    @classmethod
    async def open(cls, url: str, wait_seconds: float = WAIT_SECONDS) -> Postgres:
        """Connects and brings the tables up to date. Raises StoreError."""
        options = _options(url)
        options.setdefault("connect_timeout", CONNECT_SECONDS)
        options.setdefault("application_name", "hutch")
        # A server that is cut off is given up after so many milliseconds.
        options.setdefault("tcp_user_timeout", int(ANSWER_SECONDS * 1000))
        host = options.get("host") or options.get("hostaddr") or "its local socket"
        where = f"PostgreSQL at {host}" + (f", port {options['port']}" if options.get("port") else "")
        opened = cls(where, options, wait_seconds)
        await opened._begin()
        return opened

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        sql, values = bind(sql, asked(parameters))
        async with self._connection() as connection:
            return await (await connection.execute(for_psycopg(sql), values)).fetchall()

    scan = read

    async def write(self, *statements: Statement) -> list[Changed]:
        bound = [bind(each.sql, told(each.parameters)) for each in statements]
        async with self._connection() as connection:
            if len(bound) == 1:
                return [await _changed(connection, *bound[0])]
            async with connection.transaction():
                return [await _changed(connection, *each) for each in bound]

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        checked = [told(row) for row in rows]
        async with self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany(for_psycopg(sql), checked)
            return cursor.rowcount

    async def close(self) -> None:
        await self._connections.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._connections.one() as connection:
                yield connection
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise of_postgres(error, self._where) from error

    async def _connect(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
        wait, answer = int(self._wait * 1000), int(ANSWER_SECONDS * 1000)
        try:
            await connection.execute(f"SET lock_timeout = {wait}; SET statement_timeout = {answer}".encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    # --- the start ---

    async def _begin(self) -> None:
        try:
            async with await self._connect() as connection:
                self._check_server(connection.info)
                # Others may start at the same time, and a change of many rows takes its time.
                most = int(MIGRATE_SECONDS * 1000)
                await connection.execute(
                    f"SET lock_timeout = {most}; SET statement_timeout = {most}".encode()
                )
                while await self._next_migration(connection):
                    pass
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise of_postgres(error, self._where) from error

    def _check_server(self, info: psycopg.ConnectionInfo) -> None:
        if info.server_version // 10_000 < OLDEST:
            raise StoreError(
                f"{self._where}: is of version {info.server_version // 10_000},"
                f" and Hutch needs {OLDEST} or newer."
            )
        encoding = info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{self._where}: the database keeps text as {encoding}.",
                remedy="Make one with ENCODING 'UTF8', and name it in HUTCH_DATABASE_URL.",
            )

    async def _next_migration(self, connection: Connection) -> bool:
        """One of several that start at the same time does it; the others wait and find it done."""
        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATING})".encode())
            await connection.execute(migrating.for_postgres(migrating.TABLE).encode())
            latest = await (await connection.execute(migrating.LATEST.encode())).fetchone()
            step = migrating.after((latest[0] if latest else None) or 0, self._where)
            if step is None:
                return False
            for statement in step.statements:
                await connection.execute(migrating.for_postgres(statement).encode())
            applied = {"number": step.number, "name": step.name, "applied_at": now()}
            await connection.execute(for_psycopg(migrating.APPLIED), applied)
            return True


async def _changed(connection: Connection, sql: str, parameters: Parameters) -> Changed:
    cursor = await connection.execute(for_psycopg(sql), parameters)
    return Changed(await cursor.fetchall() if cursor.description else [], cursor.rowcount)


def _options(url: str) -> dict[str, Any]:
    """What the URL says, if it is one. No part of it is shown if not: that might be the password."""
    try:
        options: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.Error:
        options = {"port": "none"}
    host, port, database = (str(options.get(name, "")) for name in ("host", "port", "dbname"))
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or "@" in database:
        raise SettingError(
            "database_url: expected postgresql://user:password@host:port/database, got something else.",
            remedy="Write special characters in the password as %40 and the like.",
        )
    return options
