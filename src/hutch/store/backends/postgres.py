"""PostgreSQL backend, which several processes and machines can share."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from hutch.errors import SearchTimeout, SettingError, StoreError
from hutch.store.backends import migrate
from hutch.store.backends.base import (
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
    to_psycopg,
)
from hutch.store.backends.errors import from_postgres
from hutch.store.models import now

PostgresConnection = psycopg.AsyncConnection[Values]

MIN_SERVER_VERSION = 13
MAX_CONNECTIONS = 8
CONNECT_SECONDS = 5
LOCK_SECONDS = 5.0
"""Timeout for locks that another session holds."""
STATEMENT_SECONDS = 30.0
MIGRATE_SECONDS = 60.0
# Id of the advisory lock. The number is arbitrary but must be the same in every Hutch process.
_MIGRATION_LOCK = 0x48555443

# What a parsed host and port must look like. If they do not match, the URL contains a password that is not
# escaped, and a part of the password was read as host or port.
_HOST = re.compile(r"[^@\s]*")
_PORT = re.compile(r"[\d,]*")


class PostgresDatabase:
    def __init__(self, where: str, options: dict[str, Any], lock_seconds: float = LOCK_SECONDS) -> None:
        self._where = where
        self._options = options
        self._lock_seconds = lock_seconds
        self._pool = PostgresPool(self._connect, MAX_CONNECTIONS)

    @classmethod
    async def open(
        cls, url: str, lock_seconds: float = LOCK_SECONDS, schema: int | None = None
    ) -> PostgresDatabase:
        """Connects and applies missing migrations, up to `schema`. Raises StoreError."""
        options = _parse_url(url)
        options.setdefault("connect_timeout", CONNECT_SECONDS)
        options.setdefault("application_name", "hutch")
        # Time in milliseconds after which a connection fails if the server does not acknowledge sent data.
        options.setdefault("tcp_user_timeout", int(STATEMENT_SECONDS * 1000))
        host = options.get("host") or options.get("hostaddr") or "its local socket"
        where = f"PostgreSQL at {host}" + (f", port {options['port']}" if options.get("port") else "")
        database = cls(where, options, lock_seconds)
        await database._migrate(schema)
        return database

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        sql, values = expand_lists(sql, nullify_unstorable(parameters))
        async with self._connection() as connection:
            return await (await connection.execute(to_psycopg(sql), values)).fetchall()

    scan = read

    async def search(self, sql: str, max_seconds: float, **parameters: Any) -> list[Values]:
        sql, values = expand_lists(sql, nullify_unstorable(parameters))
        async with self._connection() as connection:
            try:
                async with connection.transaction():
                    # Turn off JIT compilation and parallel workers. PostgreSQL may use them because the table
                    # is long. But a search reads only a few rows, so starting them would take longer than the
                    # search.
                    milliseconds = int(max_seconds * 1000)
                    await connection.execute(
                        f"SET LOCAL statement_timeout = {milliseconds}; SET LOCAL jit = off;"
                        " SET LOCAL max_parallel_workers_per_gather = 0".encode()
                    )
                    return await (await connection.execute(to_psycopg(sql), values)).fetchall()
            except psycopg.errors.QueryCanceled:
                raise SearchTimeout from None

    async def write(self, *statements: SqlStatement) -> list[WriteResult]:
        bound = [expand_lists(sql, check_storable(parameters)) for sql, parameters in statements]
        async with self._connection() as connection:
            if len(bound) == 1:
                return [await _execute(connection, *bound[0])]
            async with connection.transaction():
                return [await _execute(connection, *statement) for statement in bound]

    async def write_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        checked = [check_storable(row) for row in rows]
        async with self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany(to_psycopg(sql), checked)
            return cursor.rowcount

    async def write_batches(self, *batches: SqlBatch) -> None:
        checked = [(sql, [check_storable(row) for row in rows]) for sql, rows in batches if rows]
        async with self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            for sql, rows in checked:
                await cursor.executemany(to_psycopg(sql), rows)

    async def notify(self, channel: str) -> None:
        await self.write(SqlStatement("SELECT pg_notify(:channel, '')", {"channel": channel}))

    async def listen(self, listeners: Mapping[str, Callable[[], None]]) -> None:
        async with self._unlimited_connection() as connection:
            for channel, on_message in listeners.items():
                await connection.execute(f"LISTEN {channel}".encode())
                # Call the listener once at the start, because messages that were sent before LISTEN are lost.
                on_message()
            async for message in connection.notifies():
                listeners[message.channel]()
        raise StoreError(f"{self._where}: closed the connection.")

    async def schema_version(self) -> int:
        return int((await self.read(migrate.SELECT_LATEST))[0][0])

    async def export_tables(self, tables: Sequence[str], on_rows: OnRows) -> None:
        async with self._unlimited_connection() as connection, connection.transaction():
            await connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for table in tables:
                async with connection.cursor(name="export") as cursor:
                    await cursor.execute(f"SELECT * FROM {table}".encode())
                    columns = [column.name for column in cursor.description or ()]
                    rows = await cursor.fetchmany(EXPORT_ROWS)
                    on_rows(table, columns, rows)
                    while rows := await cursor.fetchmany(EXPORT_ROWS):
                        on_rows(table, columns, rows)

    async def import_tables(self, batches: Iterable[TableRows]) -> None:
        async with self._unlimited_connection() as connection, connection.transaction():
            for batch in batches:
                async with connection.cursor() as cursor:
                    await cursor.executemany(to_psycopg(batch.insert_sql), batch.parameters)

    @asynccontextmanager
    async def _unlimited_connection(self) -> AsyncIterator[PostgresConnection]:
        """Opens a connection without a time limit for statements."""
        try:
            async with await self._connect() as connection:
                await connection.execute(b"SET statement_timeout = 0")
                yield connection
        except (psycopg.Error, OSError) as error:
            raise from_postgres(error, self._where) from error

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PostgresConnection]:
        try:
            async with asyncio.timeout(STATEMENT_SECONDS), self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise from_postgres(error, self._where) from error

    async def _connect(self) -> PostgresConnection:
        connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
        lock, statement = int(self._lock_seconds * 1000), int(STATEMENT_SECONDS * 1000)
        try:
            await connection.execute(
                f"SET lock_timeout = {lock}; SET statement_timeout = {statement}".encode()
            )
        except BaseException:
            await connection.close()
            raise
        return connection

    # --- opening ---

    async def _migrate(self, schema: int | None) -> None:
        try:
            async with await self._connect() as connection:
                self._check_server(connection.info)
                # Wait longer than usual, because another process may be migrating, and changing many rows
                # takes a while.
                timeout = int(MIGRATE_SECONDS * 1000)
                await connection.execute(
                    f"SET lock_timeout = {timeout}; SET statement_timeout = {timeout}".encode()
                )
                while await self._next_migration(connection, schema):
                    pass
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise from_postgres(error, self._where) from error

    def _check_server(self, info: psycopg.ConnectionInfo) -> None:
        if info.server_version // 10_000 < MIN_SERVER_VERSION:
            raise StoreError(
                f"{self._where}: has version {info.server_version // 10_000},"
                f" and Hutch needs {MIN_SERVER_VERSION} or newer."
            )
        encoding = info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{self._where}: the encoding of the database is {encoding}.",
                remedy="Create one with ENCODING 'UTF8', and set HUTCH_DATABASE_URL to it.",
            )

    async def _next_migration(self, connection: PostgresConnection, schema: int | None) -> bool:
        """Applies the next migration. Returns False if there is none. Processes that start at the same time
        take turns, because an advisory lock is held.
        """
        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})".encode())
            await connection.execute(migrate.to_postgres(migrate.MIGRATIONS_TABLE).encode())
            latest = await (await connection.execute(migrate.SELECT_LATEST.encode())).fetchone()
            migration = migrate.next_migration((latest[0] if latest else None) or 0, self._where, schema)
            if migration is None:
                return False
            for statement in migration.statements:
                await connection.execute(migrate.to_postgres(statement).encode())
            applied = {"number": migration.number, "name": migration.name, "applied_at": now()}
            await connection.execute(to_psycopg(migrate.INSERT_APPLIED), applied)
            return True


async def _execute(connection: PostgresConnection, sql: str, parameters: Parameters) -> WriteResult:
    cursor = await connection.execute(to_psycopg(sql), parameters)
    return WriteResult(await cursor.fetchall() if cursor.description else [], cursor.rowcount)


def _parse_url(url: str) -> dict[str, Any]:
    """Parses the URL. Raises SettingError without quoting the URL, which may contain a password."""
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


class PostgresPool:
    """Pool with a maximum size. Connects on demand, and raises the cause immediately if that fails.

    psycopg's own pool retries in the background and hides the cause.
    """

    def __init__(self, connect: Callable[[], Awaitable[PostgresConnection]], max_connections: int) -> None:
        self._connect = connect
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[PostgresConnection] = []
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PostgresConnection]:
        async with self._slots:
            if self._closed:
                raise StoreError("The database is closed.")
            connection = await self._take_idle() or await self._connect()
            try:
                yield connection
            finally:
                await self._release(connection)

    async def close(self) -> None:
        """Closes the idle connections. Connections in use are closed when they are returned."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    async def _take_idle(self) -> PostgresConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if _is_usable(connection):
                return connection
            await connection.close()
        return None

    async def _release(self, connection: PostgresConnection) -> None:
        """Keeps the connection for reuse, or closes it if it is still inside a transaction."""
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        if is_idle and not self._closed:
            self._idle.append(connection)
        else:
            await connection.close()


def _is_usable(connection: PostgresConnection) -> bool:
    """Returns True if the connection is open and has no unread data. Unread data means that the server has
    closed it.
    """
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
