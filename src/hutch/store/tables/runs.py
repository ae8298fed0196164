"""Table of run records, with their encrypted contents."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from hutch.errors import VaultError
from hutch.store.backends.base import Database, SqlBatch, SqlStatement, Values, replace_unstorable
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import NewRun, RunRow
from hutch.store.tables.run_search import RunCounts, RunPage, RunQuery, RunSearch
from hutch.tasks import TimeSlices

logger = logging.getLogger("hutch.store")

_FIELDS = tuple(RunRow.__struct_fields__)
RUN_COLUMNS = ", ".join(_FIELDS)
MAX_LISTED = 1000
MAX_DELETED = 1_000
"""Maximum number of rows that one transaction deletes."""

_INSERT_RUN = f"""
    INSERT INTO runs ({RUN_COLUMNS}, bytes) VALUES ({", ".join(f":{name}" for name in _FIELDS)}, :bytes)
    ON CONFLICT (run_id) DO UPDATE SET
        {", ".join(f"{name} = excluded.{name}" for name in (*_FIELDS[1:], "bytes"))}
    WHERE runs.outcome IN ('suspended', 'interrupted', 'retrying')
"""
_INSERT_MISSING = f"""
    INSERT INTO runs ({RUN_COLUMNS}, bytes) VALUES ({", ".join(f":{name}" for name in _FIELDS)}, :bytes)
    ON CONFLICT (run_id) DO NOTHING
"""
_INSERT_CONTENT = """
    INSERT INTO run_contents (run_id, content) VALUES (:run_id, :content)
    ON CONFLICT (run_id) DO UPDATE SET content = excluded.content
"""
_INSERT_TARGET = """
    INSERT INTO run_targets (kind, name, created_at, run_id) VALUES (:kind, :name, :created_at, :run_id)
    ON CONFLICT (kind, name, created_at, run_id) DO NOTHING
"""


def message_context(run_id: str) -> tuple[str, ...]:
    return "run message", run_id


def content_context(run_id: str) -> tuple[str, ...]:
    return "run content", run_id


def _run_from_row(row: Values) -> RunRow:
    return RunRow(**dict(zip(_FIELDS, row, strict=True)))


class RunTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption
        self._search = RunSearch(database, RUN_COLUMNS, _run_from_row, self._message)
        self._warned = False

    async def add_new(self, runs: Sequence[NewRun]) -> None:
        """Inserts records in one transaction. If a run already has a record, replaces this record only if the
        run was suspended, was recorded as interrupted although it continues, or is tried again.

        Characters that cannot be stored are replaced, so that one bad record does not block the batch.
        Messages and contents that cannot be encrypted, because the master key is missing, are left out.
        """
        if not runs:
            return
        encrypted, slices = [], TimeSlices()
        for run in runs:
            encrypted.append(await self._encrypt(run))
            await slices.pause()
        await self._database.write_batches(
            SqlBatch(_INSERT_RUN, [_columns(run) for run in encrypted]),
            SqlBatch(
                _INSERT_CONTENT,
                [
                    {"run_id": replace_unstorable(run.row.run_id), "content": run.content}
                    for run in encrypted
                    if run.content is not None
                ],
            ),
            SqlBatch(_INSERT_TARGET, [target for run in encrypted for target in _targets(run)]),
        )

    async def _encrypt(self, run: NewRun) -> NewRun:
        row = run.row
        if row.error_message is None and run.content is None:
            return run
        run_id = replace_unstorable(row.run_id)
        try:
            message, content = row.error_message, run.content
            if message is not None:
                message = await self._encryption.encrypt(message, *message_context(run_id))
            if content is not None:
                content = content if run.redact is None else await run.redact(content)
                content = await self._encryption.encrypt(content, *content_context(run_id))
        except VaultError as error:
            if not self._warned:
                logger.warning("messages and contents of runs are not recorded: %s", error)
            self._warned = True
            row = msgspec.structs.replace(row, error_message=None, recorded="metadata")
            return msgspec.structs.replace(run, row=row, content=None)
        row = msgspec.structs.replace(row, error_message=message)
        return msgspec.structs.replace(run, row=row, content=content)

    async def get(self, run_id: str) -> RunRow | None:
        rows = await self._database.read(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id", run_id=run_id
        )
        return await self._decrypt(_run_from_row(rows[0])) if rows else None

    async def content(self, run_id: str) -> str | None:
        """Returns the content of a run as JSON text. Raises VaultError if it cannot be decrypted."""
        sql = "SELECT content FROM run_contents WHERE run_id = :run_id"
        rows = await self._database.read(sql, run_id=run_id)
        return await self._encryption.decrypt(rows[0][0], *content_context(run_id)) if rows else None

    async def list(
        self, owner: str, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[RunRow]:
        """Lists runs of an owner, newest first. `before` is the creation time and the id of the last run of
        the previous page.
        """
        created, run_id = before or ("\U0010ffff", "")
        sql = f"""
            SELECT {RUN_COLUMNS} FROM runs WHERE owner = :owner AND (created_at, run_id) < (:created, :run_id)
            ORDER BY created_at DESC, run_id DESC LIMIT :limit
        """
        limit = max(0, min(limit, MAX_LISTED))
        rows = await self._database.scan(sql, owner=owner, created=created, run_id=run_id, limit=limit)
        return [await self._decrypt(_run_from_row(row)) for row in rows]

    async def search(self, query: RunQuery) -> RunPage:
        """Returns a page of the runs that match. Raises SearchTimeout."""
        page = await self._search.page(query)
        return page._replace(runs=[await self._decrypt(row) for row in page.runs])

    async def count(self, query: RunQuery) -> RunCounts:
        """Counts the runs that match, up to a maximum. Raises SearchTimeout."""
        return await self._search.counts(query)

    async def _decrypt(self, row: RunRow) -> RunRow:
        """Decrypts the error message of a row."""
        if row.error_message is None:
            return row
        message = await self._message(row.run_id, row.error_message)
        return msgspec.structs.replace(row, error_message=message)

    async def _message(self, run_id: str, encrypted: str) -> str | None:
        try:
            return await self._encryption.decrypt(encrypted, *message_context(run_id))
        except VaultError as error:
            # Do not fail: the other fields of this run, and the other runs of the list, can still be read.
            logger.warning("the message of run %s cannot be decrypted: %s", run_id, error)
            return None

    async def end_suspended(self, run_id: str, outcome: str) -> None:
        """Sets the outcome of a suspended run that will never be continued."""
        sql = "UPDATE runs SET outcome = :outcome WHERE run_id = :run_id AND outcome = 'suspended'"
        await self._database.write(SqlStatement(sql, {"run_id": run_id, "outcome": outcome}))

    async def mark_retrying(self, run_id: str) -> None:
        """Marks the record of a run that is tried again, so that the run's next record replaces it."""
        # A suspended run needs no mark, because its next record replaces this one anyway.
        sql = "UPDATE runs SET outcome = 'retrying' WHERE run_id = :run_id AND outcome <> 'suspended'"
        await self._database.write(SqlStatement(sql, {"run_id": run_id}))

    async def prune(self, older_than: str) -> int:
        """Deletes runs that were created before `older_than`. Returns the number of deleted runs. Deletes in
        batches, so that other writers get their turn.
        """
        deleted = 0
        while True:
            count = await self._delete_oldest("created_at < :older_than", older_than=older_than)
            deleted += count
            if count < MAX_DELETED:
                return deleted

    async def prune_to(self, max_bytes: int) -> int:
        """Deletes the oldest runs until all records together have at most `max_bytes`. Returns the number of
        deleted runs.
        """
        deleted = 0
        while await self.size() > max_bytes and (count := await self._delete_oldest("TRUE")) > 0:
            deleted += count
        return deleted

    async def size(self) -> int:
        """Returns the number of bytes of all records. Reads all rows."""
        return int((await self._database.scan("SELECT COALESCE(SUM(bytes), 0) FROM runs"))[0][0])

    async def _delete_oldest(self, condition: str, **values: Any) -> int:
        sql = f"""
            DELETE FROM runs WHERE run_id IN (
                SELECT run_id FROM runs WHERE {condition} AND outcome <> 'suspended'
                ORDER BY created_at, run_id LIMIT :limit
            )
        """
        (changed,) = await self._database.write(SqlStatement(sql, {**values, "limit": MAX_DELETED}))
        return changed.row_count


def insert_if_missing(runs: Sequence[NewRun]) -> tuple[SqlBatch, SqlBatch]:
    """Returns the statements that insert records without contents, for runs that have no record yet."""
    return (
        SqlBatch(_INSERT_MISSING, [_columns(run) for run in runs]),
        SqlBatch(_INSERT_TARGET, [target for run in runs for target in _targets(run)]),
    )


def _columns(run: NewRun) -> dict[str, Any]:
    values = msgspec.structs.asdict(run.row)
    for name, value in values.items():
        # Most values are NULL, a number or ASCII. A call of the function would take longer than this check.
        if type(value) is str and (not value.isascii() or "\0" in value):
            values[name] = replace_unstorable(value)
    values["bytes"] = run.size
    return values


def _targets(run: NewRun) -> builtins.list[dict[str, Any]]:
    common = {"created_at": run.row.created_at, "run_id": replace_unstorable(run.row.run_id)}
    named = [("tool", name) for name in run.tools] + [("host", name) for name in run.hosts]
    return [{"kind": kind, "name": replace_unstorable(name), **common} for kind, name in named]
