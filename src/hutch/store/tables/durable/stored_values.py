"""Table of large results that later calls of the same owner can use."""

from __future__ import annotations

from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import now

PART_BYTES = 256 * 1024
"""Size of the parts in which a value is stored."""


class StoredValueTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def add(self, owner: str, name: str, data: bytes, expires_at: str, max_bytes: int) -> None:
        """Stores a value. Deletes the owner's oldest values until all of them together have at most
        `max_bytes`.
        """
        key = {"owner": owner, "name": name}
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        encrypted = [
            await self._encryption.encrypt_bytes(part, *_context(owner, name, number, len(parts)))
            for number, part in enumerate(parts)
        ]
        values = {**key, "created_at": now(), "expires_at": expires_at, "bytes": sum(map(len, encrypted))}
        await self._database.write(
            SqlStatement(
                "INSERT INTO stored_values (owner, name, created_at, expires_at, bytes)"
                " VALUES (:owner, :name, :created_at, :expires_at, :bytes)",
                values,
            ),
            *(
                SqlStatement(
                    "INSERT INTO stored_value_parts (owner, name, part, data)"
                    " VALUES (:owner, :name, :part, :data)",
                    {**key, "part": number, "data": text},
                )
                for number, text in enumerate(encrypted)
            ),
            SqlStatement(
                """
                DELETE FROM stored_values WHERE owner = :owner AND name IN (
                    SELECT name FROM (
                        SELECT name, SUM(bytes) OVER (ORDER BY created_at DESC, name) AS newer_bytes
                        FROM stored_values WHERE owner = :owner
                    ) AS sized WHERE newer_bytes > :max_bytes
                )
                """,
                {"owner": owner, "max_bytes": max_bytes},
            ),
        )

    async def get(self, owner: str, name: str) -> bytes | None:
        """Returns a value, or None if the owner has no value with this name or the value has expired. Raises
        VaultError.
        """
        sql = """
            SELECT p.data FROM stored_value_parts p
            JOIN stored_values v ON v.owner = p.owner AND v.name = p.name
            WHERE p.owner = :owner AND p.name = :name AND v.expires_at > :now ORDER BY p.part
        """
        rows = await self._database.scan(sql, owner=owner, name=name, now=now())
        if not rows:
            return None
        parts = [
            await self._encryption.decrypt_bytes(text, *_context(owner, name, number, len(rows)))
            for number, (text,) in enumerate(rows)
        ]
        return b"".join(parts)

    async def names(self, owner: str) -> list[str]:
        """Returns the names of an owner's values, the newest first."""
        sql = """
            SELECT name FROM stored_values WHERE owner = :owner AND expires_at > :now
            ORDER BY created_at DESC, name LIMIT 100
        """
        return [name for (name,) in await self._database.scan(sql, owner=owner, now=now())]

    async def delete_expired(self, before: str) -> None:
        sql = "DELETE FROM stored_values WHERE expires_at < :before"
        await self._database.write(SqlStatement(sql, {"before": before}))


def _context(owner: str, name: str, number: int, count: int) -> tuple[str, ...]:
    return "value", owner, name, f"{number}/{count}"
