"""Connections to PostgreSQL that are kept for the next who wants one."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
from psycopg.pq import TransactionStatus

from hutch.errors import StoreError
from hutch.store.database import Values

Connection = psycopg.AsyncConnection[Values]


class Connections:
    """A few at most. A new one is made by whoever needs it, and who cannot have it is told why and at once.

    That is what psycopg's own pool does not do: it goes on trying in the background, and gives no reason.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], most: int) -> None:
        self._connect = connect
        self._places = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        async with self._places:
            if self._closed:
                raise StoreError("The database is closed.")
            connection = await self._take() or await self._connect()
            try:
                yield connection
            finally:
                await self._give_back(connection)

    async def close(self) -> None:
        """Those in use are closed when they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    async def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if _is_quiet(connection):
                return connection
            await connection.close()
        return None

    async def _give_back(self, connection: Connection) -> None:
        """What somebody left in the middle of something is no use to the next."""
        in_order = connection.info.transaction_status == TransactionStatus.IDLE
        if in_order and not self._closed:
            self._idle.append(connection)
        else:
            await connection.close()


def _is_quiet(connection: Connection) -> bool:
    """Whether it is open and the server has said nothing since: that is how one hears that it has gone."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
