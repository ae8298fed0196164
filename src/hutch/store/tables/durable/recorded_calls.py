"""Table of the tool calls of runs whose guests cannot be stored, such as toolscripts. A resumed run gets the
recorded results instead of calling the tools again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hutch.store.backends.base import Database, SqlBatch, SqlStatement
from hutch.store.encryption import ColumnEncryption
from hutch.tasks import TimeSlices

ROW_BYTES = 256
"""Approximate size of a row without its result."""


_COLUMNS = ("run_id", "number", "owner", "server", "tool", "digest", "answer", "bytes", "expires_at")
_INSERT = f"INSERT INTO recorded_calls ({', '.join(_COLUMNS)})"
_VALUES = ", ".join(f":{name}" for name in _COLUMNS)


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    server: str
    tool: str
    digest: str
    """SHA-256 of the arguments."""
    answer: bytes | None = None
    """Result or error. None if the call was being made when its process died."""


class RecordedCallTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def add(self, run_id: str, owner: str, call: RecordedCall, expires_at: str) -> None:
        """Records a call that is about to be made."""
        await self.add_all(run_id, owner, [call], expires_at)

    async def add_all(self, run_id: str, owner: str, calls: Sequence[RecordedCall], expires_at: str) -> None:
        """Records calls, with their results as far as they have any. Raises AlreadyExists, and records
        nothing, if a number is in use.
        """
        rows, slices = [], TimeSlices()
        for call in calls:
            await slices.pause()
            rows.append(await self._values(run_id, owner, call, expires_at))
        await self._database.write_batches(SqlBatch(f"{_INSERT} VALUES ({_VALUES})", rows))

    async def add_held(
        self, run_id: str, owner: str, call: RecordedCall, expires_at: str, holder: str
    ) -> bool:
        """Like `add`, for a run that may be suspended. Returns False, and records nothing, if another process
        than `holder` has continued the run, or if the run has ended.
        """
        values = await self._values(run_id, owner, call, expires_at)
        run = {"run_id": run_id, "holder": holder}
        # The first statement locks the row, so that another process takes the run either before this
        # transaction or after it.
        _, inserted = await self._database.write(
            SqlStatement("UPDATE checkpoints SET holder = holder WHERE run_id = :run_id", {"run_id": run_id}),
            SqlStatement(
                f"""
                {_INSERT} SELECT {_VALUES} WHERE NOT EXISTS (
                    SELECT 1 FROM checkpoints
                    WHERE run_id = :run_id AND (holder IS NULL OR holder <> :holder)
                )
                """,
                values | run,
            ),
        )
        return inserted.row_count == 1

    async def _values(self, run_id: str, owner: str, call: RecordedCall, expires_at: str) -> dict[str, Any]:
        answer = None
        if call.answer is not None:
            answer = await self._encryption.encrypt_bytes(call.answer, *_context(run_id, call))
        return {
            "run_id": run_id,
            "number": call.number,
            "owner": owner,
            "server": call.server,
            "tool": call.tool,
            "digest": call.digest,
            "answer": answer,
            "bytes": ROW_BYTES + len(answer or ""),
            "expires_at": expires_at,
        }

    async def answer(self, run_id: str, call: RecordedCall) -> None:
        """Stores the result of a call that is recorded without one."""
        encrypted = await self._encryption.encrypt_bytes(call.answer or b"", *_context(run_id, call))
        sql = """
            UPDATE recorded_calls SET answer = :answer, bytes = :bytes
            WHERE run_id = :run_id AND number = :number AND answer IS NULL
        """
        values = {
            "run_id": run_id,
            "number": call.number,
            "answer": encrypted,
            "bytes": ROW_BYTES + len(encrypted),
        }
        await self._database.write(SqlStatement(sql, values))

    async def of_run(self, run_id: str, owner: str) -> list[RecordedCall]:
        """Returns the calls of a run, in the order in which they were made. Raises VaultError."""
        sql = """
            SELECT number, server, tool, digest, answer FROM recorded_calls
            WHERE run_id = :run_id AND owner = :owner ORDER BY number
        """
        calls, slices = [], TimeSlices()
        for number, server, tool, digest, text in await self._database.scan(sql, run_id=run_id, owner=owner):
            await slices.pause()
            call = RecordedCall(number=number, server=server, tool=tool, digest=digest)
            if text is not None:
                answer = await self._encryption.decrypt_bytes(text, *_context(run_id, call))
                call = msgspec.structs.replace(call, answer=answer)
            calls.append(call)
        return calls

    async def extend(self, run_id: str, owner: str, expires_at: str) -> None:
        sql = "UPDATE recorded_calls SET expires_at = :expires_at WHERE run_id = :run_id AND owner = :owner"
        values = {"run_id": run_id, "owner": owner, "expires_at": expires_at}
        await self._database.write(SqlStatement(sql, values))

    async def stored_bytes(self, owner: str) -> int:
        """Returns the size of all calls of an owner."""
        sql = "SELECT COALESCE(SUM(bytes), 0) FROM recorded_calls WHERE owner = :owner"
        return int((await self._database.scan(sql, owner=owner))[0][0])

    async def delete(self, run_ids: Sequence[str], owner: str) -> None:
        sql = "DELETE FROM recorded_calls WHERE run_id IN :run_ids AND owner = :owner"
        await self._database.write(SqlStatement(sql, {"run_ids": list(run_ids), "owner": owner}))

    async def delete_expired(self, before: str) -> None:
        sql = "DELETE FROM recorded_calls WHERE expires_at < :before"
        await self._database.write(SqlStatement(sql, {"before": before}))


def _context(run_id: str, call: RecordedCall) -> tuple[str, ...]:
    return "recorded call", run_id, str(call.number), call.server, call.tool, call.digest
