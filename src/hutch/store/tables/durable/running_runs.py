"""Table of runs in progress, with the records to store if their process dies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hutch.store.backends.base import Database, SqlBatch, SqlStatement, replace_unstorable
from hutch.store.models import NewRun, RunRow, now
from hutch.store.tables.runs import insert_if_missing

MAX_LISTED = 1_000


class _StoredRecord(msgspec.Struct, frozen=True):
    row: RunRow
    tools: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class RunningRunTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, holder: str, runs: Sequence[NewRun]) -> None:
        """Adds or replaces runs that the process `holder` executes. `runs` are the records that are stored if
        this process dies; their contents are left out.
        """
        sql = """
            INSERT INTO running_runs (run_id, holder, seen_at, record)
            VALUES (:run_id, :holder, :now, :record)
            ON CONFLICT (run_id) DO UPDATE SET
                holder = excluded.holder, seen_at = excluded.seen_at, record = excluded.record
        """
        rows = [
            {
                "run_id": replace_unstorable(run.row.run_id),
                "holder": holder,
                "now": now(),
                "record": msgspec.json.encode(_StoredRecord(run.row, run.tools, run.hosts)).decode(),
            }
            for run in runs
        ]
        await self._database.write_batches(SqlBatch(sql, rows))

    async def remove(self, holder: str, run_ids: Sequence[str]) -> None:
        """Removes runs that have ended."""
        sql = "DELETE FROM running_runs WHERE run_id IN :run_ids AND holder = :holder"
        values = {"run_ids": [replace_unstorable(run_id) for run_id in run_ids], "holder": holder}
        await self._database.write(SqlStatement(sql, values))

    async def renew(self, holder: str) -> None:
        """Reports that a process is alive."""
        sql = "UPDATE running_runs SET seen_at = :now WHERE holder = :holder"
        await self._database.write(SqlStatement(sql, {"holder": holder, "now": now()}))

    async def holders(self) -> dict[str, str]:
        """Returns the processes that execute runs, with the time when each last reported that it was
        alive.
        """
        sql = "SELECT holder, max(seen_at) FROM running_runs GROUP BY holder"
        return dict(await self._database.scan(sql))

    async def holder_of(self, run_id: str) -> tuple[str, str] | None:
        """Returns the process that executes a run, and when that process was last alive."""
        sql = """
            SELECT r.holder, (SELECT max(seen_at) FROM running_runs WHERE holder = r.holder)
            FROM running_runs r WHERE r.run_id = :run_id
        """
        rows = await self._database.read(sql, run_id=run_id)
        return (rows[0][0], rows[0][1]) if rows else None

    async def interrupt(self, holder: str, seen_at: str) -> list[str]:
        """Records the runs of a dead process as interrupted, unless they already have a record. Skips runs
        that are stored as checkpoints, because another process may continue them. Returns the ids of the
        runs.
        """
        sql = f"""
            SELECT run_id, record FROM running_runs r
            WHERE holder = :holder AND seen_at <= :seen_at AND NOT EXISTS (
                SELECT 1 FROM checkpoints c WHERE c.run_id = r.run_id AND c.state <> 'ended'
            )
            LIMIT {MAX_LISTED}
        """
        rows = await self._database.scan(sql, holder=holder, seen_at=seen_at)
        if rows:
            runs = [msgspec.json.decode(record, type=_StoredRecord) for _, record in rows]
            await self._database.write_batches(
                *insert_if_missing([NewRun(run.row, None, run.tools, run.hosts) for run in runs])
            )
            await self.remove(holder, [run_id for run_id, _ in rows])
        return [run_id for run_id, _ in rows]
