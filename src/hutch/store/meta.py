"""A few facts about the database itself, by name; the first to state one is believed."""

from __future__ import annotations

from hutch.store.database import Database, Statement


class Meta:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: str) -> str | None:
        found = await self._database.read("SELECT value FROM meta WHERE key = :key", key=key)
        return found[0][0] if found else None

    async def put_first(self, key: str, value: str) -> str:
        """States it unless somebody has; what holds from now on, theirs or this."""
        sql = """
            INSERT INTO meta (key, value) VALUES (:key, :value)
            ON CONFLICT (key) DO UPDATE SET value = meta.value RETURNING value
        """
        (changed,) = await self._database.write(Statement(sql, {"key": key, "value": value}))
        return str(changed.rows[0][0])

    async def swap(self, key: str, old: str, new: str) -> bool:
        """Replaces what holds if it is still `old`."""
        sql = "UPDATE meta SET value = :new WHERE key = :key AND value = :old"
        (changed,) = await self._database.write(Statement(sql, {"key": key, "old": old, "new": new}))
        return changed.touched == 1

    async def remove(self, key: str) -> None:
        await self._database.write(Statement("DELETE FROM meta WHERE key = :key", {"key": key}))
