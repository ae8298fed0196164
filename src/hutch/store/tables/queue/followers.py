"""Tables of clients that follow a run of another server, and of the events that wait for them."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from typing import NamedTuple

from hutch.errors import VaultError
from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption

MAX_LISTED = 5_000
MAX_UNREAD = 8
"""Maximum number of rows that wait for one follower."""


class Follower(NamedTuple):
    id: str
    run_id: str
    after: int
    """Number of the last event that the follower has."""
    offset: int = 0
    """Added to the numbers of the events that are sent."""


class FollowedEvents(NamedTuple):
    """Encoded events for one follower."""

    part: int
    """Order of the rows of one follower. Each server that executes the run starts at 0."""
    number: int
    """Number of the last of these events, with the offset."""
    data: bytes
    is_end: bool
    """True if the run has ended with the last of these events."""


class FollowerTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def add(self, follower: Follower, life_ms: int) -> None:
        """Adds a follower that expires after `life_ms` unless it is renewed."""
        sql = """
            INSERT INTO run_followers (id, run_id, after_number, number_offset, expires_at)
            VALUES (:id, :run_id, :after, :offset, clock_ms() + :life_ms)
        """
        await self._database.write(SqlStatement(sql, {**follower._asdict(), "life_ms": life_ms}))

    async def renew(self, ids: Collection[str], life_ms: int) -> None:
        sql = "UPDATE run_followers SET expires_at = clock_ms() + :life_ms WHERE id IN :ids"
        await self._database.write(SqlStatement(sql, {"ids": [*ids], "life_ms": life_ms}))

    async def remove(self, ids: Collection[str]) -> None:
        """Removes followers and the events that wait for them."""
        sql = "DELETE FROM run_followers WHERE id IN :ids"
        await self._database.write(SqlStatement(sql, {"ids": [*ids]}))

    async def delete_expired(self) -> None:
        await self._database.write(
            SqlStatement("DELETE FROM run_followers WHERE expires_at < clock_ms()", {})
        )

    async def list(self) -> builtins.list[Follower]:
        sql = f"""
            SELECT id, run_id, after_number, number_offset FROM run_followers
            WHERE expires_at > clock_ms() LIMIT {MAX_LISTED}
        """
        return [Follower(*row) for row in await self._database.scan(sql)]

    async def put(self, id: str, events: FollowedEvents) -> bool:
        """Stores events for a follower. Returns False if the follower has left, or has too many unread
        events.
        """
        sql = """
            INSERT INTO followed_events (follower, part, number, is_end, data)
            SELECT id, :part, :number, :is_end, :data FROM run_followers
            WHERE id = :id AND (SELECT COUNT(*) FROM followed_events WHERE follower = :id) < :max_unread
        """
        data = await self._encryption.encrypt_bytes(events.data, *_context(id, events.part))
        values = {**events._asdict(), "id": id, "data": data, "max_unread": MAX_UNREAD}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def take(self, ids: Collection[str]) -> builtins.list[tuple[str, FollowedEvents]]:
        """Removes and returns the events that wait for these followers, in order. Events that cannot be
        decrypted are returned without data.
        """
        sql = """
            DELETE FROM followed_events WHERE follower IN :ids
            RETURNING follower, part, number, data, is_end
        """
        (deleted,) = await self._database.write(SqlStatement(sql, {"ids": [*ids]}))
        taken = []
        for id, part, number, text, is_end in sorted(deleted.rows, key=lambda row: row[1]):
            try:
                data = await self._encryption.decrypt_bytes(text, *_context(id, part))
            except VaultError:
                data = b""
            taken.append((id, FollowedEvents(part, number, data, bool(is_end))))
        return taken


def _context(id: str, part: int) -> tuple[str, ...]:
    return "followed events", id, str(part)
