"""Runs: what is known of each afterwards."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import msgspec

from hutch.store.database import Database, Statement, Values, mended
from hutch.store.rows import RunRow

_FIELDS = tuple(RunRow.__struct_fields__)
COLUMNS = ", ".join(_FIELDS)
MOST_LISTED = 1000
MOST_FORGOTTEN = 1_000
"""At once."""


def run(row: Values) -> RunRow:
    return RunRow(**dict(zip(_FIELDS, row, strict=True)))


class Runs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_many(self, rows: Sequence[RunRow]) -> None:
        """In one transaction. One that is there already stays as it is.

        None is refused, whatever somebody called a run: that would keep those beside it from being written.
        """
        sql = f"""
            INSERT INTO runs ({COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (run_id) DO NOTHING
        """
        if rows:
            await self._database.write_many(
                sql,
                [
                    {name: mended(value) for name, value in msgspec.structs.asdict(row).items()}
                    for row in rows
                ],
            )

    async def get(self, run_id: str) -> RunRow | None:
        found = await self._database.read(f"SELECT {COLUMNS} FROM runs WHERE run_id = :run_id", run_id=run_id)
        return run(found[0]) if found else None

    async def list(
        self, owner: str, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[RunRow]:
        """The newest first. `before` is when the last one that was seen started, and its id."""
        started, run_id = before or ("\U0010ffff", "")
        sql = f"""
            SELECT {COLUMNS} FROM runs WHERE owner = :owner AND (started_at, run_id) < (:started, :run_id)
            ORDER BY started_at DESC, run_id DESC LIMIT :limit
        """
        most = max(0, min(limit, MOST_LISTED))
        found = await self._database.scan(sql, owner=owner, started=started, run_id=run_id, limit=most)
        return [run(row) for row in found]

    async def prune(self, older_than: str) -> int:
        """Forgets those that started before; how many there were. Some at a time: others write too."""
        sql = """
            DELETE FROM runs WHERE run_id IN (
                SELECT run_id FROM runs WHERE started_at < :older_than LIMIT :most
            )
        """
        values = {"older_than": older_than, "most": MOST_FORGOTTEN}
        forgotten = 0
        while True:
            (changed,) = await self._database.write(Statement(sql, values))
            forgotten += changed.touched
            if changed.touched < MOST_FORGOTTEN:
                return forgotten
