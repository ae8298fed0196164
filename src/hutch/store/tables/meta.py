"""Table of keys and values about the database itself."""

from __future__ import annotations

from hutch.store.backends.base import Database, SqlStatement


class MetaTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: str) -> str | None:
        rows = await self._database.read("SELECT value FROM meta WHERE key = :key", key=key)
        return rows[0][0] if rows else None

    async def put_first(self, key: str, value: str) -> str:
        """Stores the value unless the key exists. Returns the value that is stored now."""
        sql = """
            INSERT INTO meta (key, value) VALUES (:key, :value)
            ON CONFLICT (key) DO UPDATE SET value = meta.value RETURNING value
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"key": key, "value": value}))
        return str(changed.rows[0][0])

    async def swap(self, key: str, old: str, new: str) -> bool:
        """Replaces the value if it is still `old`. Returns False if it is not."""
        sql = "UPDATE meta SET value = :new WHERE key = :key AND value = :old"
        (changed,) = await self._database.write(SqlStatement(sql, {"key": key, "old": old, "new": new}))
        return changed.row_count == 1

    async def remove(self, key: str) -> None:
        await self._database.write(SqlStatement("DELETE FROM meta WHERE key = :key", {"key": key}))
