"""Table of run records."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import msgspec

from hutch.store.backends.base import Database, SqlStatement, Values, replace_unstorable
from hutch.store.models import RunRow

_FIELDS = tuple(RunRow.__struct_fields__)
RUN_COLUMNS = ", ".join(RunRow.__struct_encode_fields__)
MAX_LISTED = 1000
MAX_DELETED = 1_000
"""Maximum number of rows that one transaction deletes."""


def _run_from_row(row: Values) -> RunRow:
    return RunRow(**dict(zip(_FIELDS, row, strict=True)))


class RunTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_many(self, rows: Sequence[RunRow]) -> None:
        """Inserts records in one transaction. Existing records stay unchanged.

        Characters that cannot be stored are replaced, so that one bad record does not block the batch.
        """
        sql = f"""
            INSERT INTO runs ({RUN_COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
            ON CONFLICT (run_id) DO NOTHING
        """
        if rows:
            await self._database.write_many(
                sql,
                [
                    {name: replace_unstorable(value) for name, value in msgspec.structs.asdict(row).items()}
                    for row in rows
                ],
            )

    async def get(self, run_id: str) -> RunRow | None:
        rows = await self._database.read(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id", run_id=run_id
        )
        return _run_from_row(rows[0]) if rows else None

    async def list(
        self, owner: str, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[RunRow]:
        """Lists runs, newest first. `before` is the start time and the id of the last run of the previous
        page.
        """
        started, run_id = before or ("\U0010ffff", "")
        sql = f"""
            SELECT {RUN_COLUMNS} FROM runs WHERE owner = :owner AND (started_at, run_id) < (:started, :run_id)
            ORDER BY started_at DESC, run_id DESC LIMIT :limit
        """
        limit = max(0, min(limit, MAX_LISTED))
        rows = await self._database.scan(sql, owner=owner, started=started, run_id=run_id, limit=limit)
        return [_run_from_row(row) for row in rows]

    async def prune(self, older_than: str) -> int:
        """Deletes runs that started before `older_than`. Returns the number of deleted runs. Deletes in
        batches, so that other writers get their turn.
        """
        sql = """
            DELETE FROM runs WHERE run_id IN (
                SELECT run_id FROM runs WHERE started_at < :older_than LIMIT :limit
            )
        """
        values = {"older_than": older_than, "limit": MAX_DELETED}
        deleted = 0
        while True:
            (changed,) = await self._database.write(SqlStatement(sql, values))
            deleted += changed.row_count
            if changed.row_count < MAX_DELETED:
                return deleted
