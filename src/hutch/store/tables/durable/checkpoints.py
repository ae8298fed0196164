"""Tables of suspended runs and of the tool calls that they wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from hutch.store.backends.base import Database, SqlStatement
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import now

_FIELDS = (
    "run_id",
    "owner",
    "protocol",
    "bundle",
    "generation",
    "state",
    "holder",
    "held_until",
    "created_at",
    "expires_at",
    "bytes",
)
_COLUMNS = ", ".join(_FIELDS)
MAX_LISTED = 1_000

_SAVE = f"""
    INSERT INTO checkpoints ({_COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
    ON CONFLICT (run_id) DO UPDATE SET
        generation = excluded.generation, state = excluded.state, holder = excluded.holder,
        held_until = excluded.held_until,
        bundle = excluded.bundle, expires_at = excluded.expires_at, bytes = excluded.bytes
    WHERE checkpoints.holder = :previous_holder
"""
# A suspended run can be taken. So can a run in state `running` whose process has died, that is, has not
# extended `held_until`: the run has called no tool since it was continued, so its stored state is still
# current.
_TAKE = f"""
    UPDATE checkpoints SET state = 'running', holder = :holder, held_until = :held_until
    WHERE run_id = :run_id AND owner = :owner AND expires_at > :now
        AND (state = 'suspended' OR (state = 'running' AND (held_until < :now OR :is_holder_dead = 1)))
        AND (:last_holder = '' OR holder = :last_holder)
    RETURNING {_COLUMNS}
"""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    owner: str
    protocol: str
    bundle: str
    generation: int
    state: str = "suspended"
    """`suspended`, `running` (a process continues the run), `called` (the run has called a tool in that
    process) or `ended`.
    """
    holder: str | None = None
    """Process that continues the run. A run of `ReplayedRuns` keeps it while it is suspended, because its
    code may still run in that process.
    """
    held_until: str | None = None
    created_at: str = msgspec.field(default_factory=now)
    expires_at: str
    bytes: int


class NewPendingCall(msgspec.Struct, frozen=True, kw_only=True):
    call_id: str
    provider: str
    tool: str
    token_digest: str | None = None
    question: str | None = None
    """JSON text of the question, if the call waits for an approval."""
    message: str | None = None
    """Text of the `Suspend` that the tool raised."""
    in_flight: str | None = None
    """See `PendingCall.in_flight`."""


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A stored pending call. `provider` and `tool` are None if an earlier version of Hutch stored it."""

    call_id: str
    provider: str | None
    tool: str | None
    message: str | None
    is_question: bool
    has_answer: bool


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A pending call that waits for an approval."""

    run: CheckpointRow
    call_id: str
    question: str
    decision: str | None
    held_until: str | None
    """Time until which a server holds the call to make it, if the call was approved."""


class CheckpointTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def save(
        self,
        row: CheckpointRow,
        parts: Sequence[bytes],
        calls: Sequence[NewPendingCall],
        previous_holder: str | None,
    ) -> bool:
        """Stores a suspended run. Returns False if another process continues the run meanwhile.

        `previous_holder` is the process that continued the run before. It is None for the first suspension.
        """
        encrypted = [
            await self._encryption.encrypt_bytes(part, *_part_context(row, number, len(parts)))
            for number, part in enumerate(parts)
        ]
        questions = [
            None
            if call.question is None
            else await self._encryption.encrypt(call.question, *_question_context(row.run_id, call.call_id))
            for call in calls
        ]
        messages = [
            None
            if call.message is None
            else await self._encryption.encrypt(call.message, *_message_context(row.run_id, call.call_id))
            for call in calls
        ]
        values = msgspec.structs.asdict(row) | {"previous_holder": previous_holder or ""}
        # The other statements apply only if the first one has written the row. The generation alone does not
        # show this, because another process that continued the run may have written the same generation. It
        # would have written another expiry time.
        is_saved = (
            "SELECT 1 FROM checkpoints"
            " WHERE run_id = :run_id AND generation = :generation AND expires_at = :expires_at"
        )
        guarded = {"run_id": row.run_id, "generation": row.generation, "expires_at": row.expires_at}
        results = await self._database.write(
            SqlStatement(_SAVE, values),
            SqlStatement(
                f"DELETE FROM checkpoint_parts WHERE run_id = :run_id AND EXISTS ({is_saved})", guarded
            ),
            # Keep the rows of calls that are still waiting, because these calls may have got a decision or a
            # result while the run continued.
            SqlStatement(
                "DELETE FROM pending_calls WHERE run_id = :run_id"
                f" AND call_id NOT IN :call_ids AND EXISTS ({is_saved})",
                {**guarded, "call_ids": [call.call_id for call in calls] or [""]},
            ),
            *(
                SqlStatement(
                    "INSERT INTO checkpoint_parts (run_id, part, data)"
                    f" SELECT :run_id, :part, :data WHERE EXISTS ({is_saved})",
                    {**guarded, "part": number, "data": text},
                )
                for number, text in enumerate(encrypted)
            ),
            *(
                SqlStatement(
                    "INSERT INTO pending_calls"
                    " (run_id, call_id, provider, tool, token_digest, question, message, in_flight)"
                    " SELECT :run_id, :call_id, :provider, :tool, :digest, :question, :message, :in_flight"
                    f" WHERE EXISTS ({is_saved})"
                    # Update the row, because a tool that was running when the run was stored may have
                    # deferred its result since.
                    " ON CONFLICT (run_id, call_id) DO UPDATE SET in_flight = excluded.in_flight,"
                    " token_digest = COALESCE(pending_calls.token_digest, excluded.token_digest),"
                    " question = COALESCE(pending_calls.question, excluded.question),"
                    " message = COALESCE(pending_calls.message, excluded.message)",
                    {
                        **guarded,
                        "call_id": call.call_id,
                        "provider": call.provider,
                        "tool": call.tool,
                        "digest": call.token_digest,
                        "question": question,
                        "message": message,
                        "in_flight": call.in_flight,
                    },
                )
                for call, question, message in zip(calls, questions, messages, strict=True)
            ),
        )
        return results[0].row_count == 1

    async def take(
        self,
        run_id: str,
        owner: str,
        holder: str,
        held_until: str,
        *,
        is_holder_dead: bool = False,
        last_holder: str = "",
    ) -> CheckpointRow | None:
        """Marks a suspended run as running in the process `holder`. Also takes over a run in state `running`
        if its holder has died: the time of the hold is over, or `is_holder_dead` is set. With `last_holder`,
        no other process may have continued the run since that process suspended it. Returns None if there is
        no such run, or if another process continues the run.
        """
        values = {
            "run_id": run_id,
            "owner": owner,
            "holder": holder,
            "held_until": held_until,
            "now": now(),
            "is_holder_dead": int(is_holder_dead),
            "last_holder": last_holder,
        }
        (changed,) = await self._database.write(SqlStatement(_TAKE, values))
        return _row(changed.rows[0]) if changed.rows else None

    async def state(self, row: CheckpointRow) -> list[bytes]:
        """Returns the state of a suspended run, in parts. Raises VaultError."""
        sql = "SELECT data FROM checkpoint_parts WHERE run_id = :run_id ORDER BY part"
        texts = [text for (text,) in await self._database.scan(sql, run_id=row.run_id)]
        return [
            await self._encryption.decrypt_bytes(text, *_part_context(row, number, len(texts)))
            for number, text in enumerate(texts)
        ]

    async def get(self, run_id: str) -> CheckpointRow | None:
        rows = await self._database.read(
            f"SELECT {_COLUMNS} FROM checkpoints WHERE run_id = :run_id", run_id=run_id
        )
        return _row(rows[0]) if rows else None

    async def release(self, run_id: str, holder: str) -> None:
        """Marks a run that could not be continued as suspended again."""
        sql = """
            UPDATE checkpoints SET state = 'suspended', holder = NULL, held_until = NULL
            WHERE run_id = :run_id AND holder = :holder AND state = 'running'
        """
        await self._database.write(SqlStatement(sql, {"run_id": run_id, "holder": holder}))

    async def mark_called(self, run_id: str, holder: str) -> bool:
        """Records that the run is about to call a tool. Returns False if another process has the run, or if
        the cancellation of the run was requested.
        """
        sql = """
            UPDATE checkpoints SET state = 'called'
            WHERE run_id = :run_id AND holder = :holder AND cancel_requested_at IS NULL
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id, "holder": holder}))
        return changed.row_count == 1

    async def request_cancel(self, run_id: str, owner: str) -> bool:
        """Requests the cancellation of a run that a process continues. Returns False if no process continues
        the run.
        """
        sql = """
            UPDATE checkpoints SET cancel_requested_at = :now
            WHERE run_id = :run_id AND owner = :owner AND state IN ('running', 'called')
        """
        values = {"run_id": run_id, "owner": owner, "now": now()}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def cancelled(self, run_ids: Sequence[str]) -> list[str]:
        """Returns the runs whose cancellation was requested."""
        sql = "SELECT run_id FROM checkpoints WHERE run_id IN :run_ids AND cancel_requested_at IS NOT NULL"
        return [run_id for (run_id,) in await self._database.read(sql, run_ids=list(run_ids) or [""])]

    async def extend(
        self, holder: str, held_until: str, run_ids: Sequence[str], call_ids: Sequence[str]
    ) -> None:
        """Extends the time for which a process holds its runs and the approved calls that it is making."""
        statements = [
            SqlStatement(
                f"UPDATE {table} SET held_until = :held_until WHERE holder = :holder AND {column} IN :ids",
                {"holder": holder, "held_until": held_until, "ids": list(ids)},
            )
            for table, column, ids in (
                ("checkpoints", "run_id", run_ids),
                ("pending_calls", "call_id", call_ids),
            )
            if ids
        ]
        await self._database.write(*statements)

    async def delete_suspended(self, run_id: str) -> bool:
        """Deletes a suspended run. Returns False if the run is not suspended."""
        sql = "DELETE FROM checkpoints WHERE run_id = :run_id AND state = 'suspended'"
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id}))
        return changed.row_count == 1

    async def delete(self, run_id: str, owner: str) -> None:
        """Deletes a run that is suspended or has ended, with its result."""
        sql = """
            DELETE FROM checkpoints
            WHERE run_id = :run_id AND owner = :owner AND state IN ('suspended', 'ended')
        """
        await self._database.write(SqlStatement(sql, {"run_id": run_id, "owner": owner}))

    async def answer(self, run_id: str, answers: Mapping[str, bytes], max_bytes: int) -> list[str]:
        """Stores the results of pending calls in one transaction. Their sizes count as part of the run, which
        may have at most `max_bytes`. Returns the ids of calls whose result was not stored: the call does not
        exist or already has a result, or the result is too large for the run.
        """
        statements = []
        for call_id, answer in answers.items():
            text = await self._encryption.encrypt_bytes(answer, *_answer_context(run_id, call_id))
            call = {"run_id": run_id, "call_id": call_id}
            is_missing = "run_id = :run_id AND call_id = :call_id AND answer IS NULL"
            # The first statement adds the size to the size of the run. It also locks the row of the run, so
            # that concurrent results are all counted. The last statement subtracts the size again if the
            # result was not stored.
            statements += [
                SqlStatement(
                    "UPDATE checkpoints SET bytes = bytes + :bytes WHERE run_id = :run_id"
                    f" AND EXISTS (SELECT 1 FROM pending_calls WHERE {is_missing})",
                    {**call, "bytes": len(text)},
                ),
                SqlStatement(
                    f"UPDATE pending_calls SET answer = :answer WHERE {is_missing} AND EXISTS"
                    " (SELECT 1 FROM checkpoints WHERE run_id = :run_id AND bytes <= :max_bytes)",
                    {**call, "answer": text, "max_bytes": max_bytes},
                ),
                SqlStatement(
                    "UPDATE checkpoints SET bytes = bytes - :bytes WHERE run_id = :run_id"
                    f" AND EXISTS (SELECT 1 FROM pending_calls WHERE {is_missing})",
                    {**call, "bytes": len(text)},
                ),
            ]
        results = await self._database.write(*statements)
        return [
            call_id for call_id, result in zip(answers, results[1::3], strict=True) if not result.row_count
        ]

    async def calls(self, run_id: str) -> list[StoredCall]:
        sql = """
            SELECT call_id, provider, tool, message, question IS NOT NULL, answer IS NOT NULL
            FROM pending_calls WHERE run_id = :run_id ORDER BY call_id
        """
        return [
            StoredCall(
                call_id=call_id,
                provider=provider,
                tool=tool,
                message=None
                if message is None
                else await self._encryption.decrypt(message, *_message_context(run_id, call_id)),
                is_question=bool(is_question),
                has_answer=bool(has_answer),
            )
            for call_id, provider, tool, message, is_question, has_answer in await self._database.read(
                sql, run_id=run_id
            )
        ]

    async def answers(self, run_id: str) -> dict[str, bytes | None]:
        """Returns the results of the pending calls; None for those that are still missing."""
        sql = "SELECT call_id, answer FROM pending_calls WHERE run_id = :run_id"
        return {
            call_id: None
            if text is None
            else await self._encryption.decrypt_bytes(text, *_answer_context(run_id, call_id))
            for call_id, text in await self._database.scan(sql, run_id=run_id)
        }

    async def answered(self, run_ids: Sequence[str]) -> list[str]:
        """Returns those of the runs whose pending calls have a result."""
        sql = """
            SELECT DISTINCT run_id FROM pending_calls WHERE run_id IN :run_ids AND answer IS NOT NULL
        """
        return [run_id for (run_id,) in await self._database.read(sql, run_ids=list(run_ids) or [""])]

    async def suspended(self, run_ids: Sequence[str], holder: str) -> list[str]:
        """Returns those of the runs that are suspended, and that no process has continued since `holder` has
        suspended them.
        """
        sql = """
            SELECT run_id FROM checkpoints
            WHERE run_id IN :run_ids AND state = 'suspended' AND holder = :holder
        """
        found = await self._database.read(sql, run_ids=list(run_ids) or [""], holder=holder)
        return [run_id for (run_id,) in found]

    async def find_call(self, token_digest: str) -> tuple[CheckpointRow, str] | None:
        """Returns the run and the id of the call with a token. Ignores calls that wait for an approval: their
        tokens do not allow a client to deliver a result.
        """
        columns = ", ".join(f"c.{name}" for name in _FIELDS)
        sql = f"""
            SELECT {columns}, p.call_id FROM pending_calls p JOIN checkpoints c ON c.run_id = p.run_id
            WHERE p.token_digest = :digest AND p.question IS NULL
        """
        rows = await self._database.read(sql, digest=token_digest)
        return (_row(rows[0][:-1]), rows[0][-1]) if rows else None

    async def questions(self, run_id: str | None = None) -> list[Question]:
        """Returns the calls without a result that wait for an approval or were approved, of all runs or of
        one. The oldest calls of each owner come first, so that no owner displaces the questions of others.
        """
        columns = ", ".join(f"c.{name}" for name in _FIELDS)
        condition = "" if run_id is None else "AND p.run_id = :run_id"
        sql = f"""
            SELECT {columns}, p.call_id, p.question, p.decision, p.held_until
            FROM pending_calls p JOIN checkpoints c ON c.run_id = p.run_id
            WHERE p.question IS NOT NULL AND p.answer IS NULL {condition}
            ORDER BY ROW_NUMBER() OVER (PARTITION BY c.owner ORDER BY c.created_at, p.call_id),
                c.created_at, p.call_id
            LIMIT {MAX_LISTED}
        """
        return [
            Question(
                run=_row(row[:-4]),
                call_id=row[-4],
                question=await self._encryption.decrypt(row[-3], *_question_context(row[0], row[-4])),
                decision=row[-2],
                held_until=row[-1],
            )
            for row in await self._database.scan(sql, **({} if run_id is None else {"run_id": run_id}))
        ]

    async def count_questions(self, owner: str, other_than: str) -> int:
        """Returns the number of calls of an owner that wait for an approval, excluding those of one run."""
        sql = """
            SELECT COUNT(*) FROM pending_calls p JOIN checkpoints c ON c.run_id = p.run_id
            WHERE c.owner = :owner AND c.run_id <> :run_id AND p.question IS NOT NULL AND p.answer IS NULL
        """
        return int((await self._database.scan(sql, owner=owner, run_id=other_than))[0][0])

    async def decide(
        self,
        run_id: str,
        call_id: str,
        decision: str,
        decided_by: str | None,
        holder: str,
        held_until: str,
        *,
        digest: str | None = None,
    ) -> bool:
        """Stores a decision, which the process `holder` then carries out. `digest` is the SHA-256 of the
        arguments that were approved or denied. Returns False if the call already has a decision or is no
        longer waiting.
        """
        sql = """
            UPDATE pending_calls SET decision = :decision, decided_by = :decided_by, decided_at = :now,
                decided_digest = :digest, holder = :holder, held_until = :held_until
            WHERE run_id = :run_id AND call_id = :call_id AND decision IS NULL AND answer IS NULL
        """
        call = {"run_id": run_id, "call_id": call_id, "holder": holder, "held_until": held_until}
        values = {**call, "decision": decision, "decided_by": decided_by, "now": now(), "digest": digest}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def end(
        self,
        run_id: str,
        holder: str | None,
        result: Sequence[bytes],
        expires_at: str,
        *,
        is_dead: bool = False,
    ) -> bool:
        """Stores the parts of a run's result and deletes its state and its recorded calls. The run must be
        held by `holder` or, if `holder` is None, be suspended. With `is_dead`, the time of the holder's hold
        must also be over. Returns False if there is no such run.
        """
        # Mark for the column `result`, while the result itself is stored in parts. Every ciphertext is
        # unique, so the other statements can check with the mark that this call has ended the run.
        mark = await self._encryption.encrypt("in parts", *_result_context(run_id))
        texts = [
            await self._encryption.encrypt_bytes(part, *_result_context(run_id, number, len(result)))
            for number, part in enumerate(result)
        ]
        condition = "state = 'suspended'" if holder is None else "holder = :holder"
        values = {"run_id": run_id} if holder is None else {"run_id": run_id, "holder": holder}
        if is_dead:
            condition, values = f"{condition} AND held_until < :now", {**values, "now": now()}
        sql = f"""
            UPDATE checkpoints SET state = 'ended', holder = NULL, held_until = NULL, result = :mark,
                expires_at = :expires_at, bytes = :bytes
            WHERE run_id = :run_id AND {condition}
        """
        is_ended = "SELECT 1 FROM checkpoints WHERE run_id = :run_id AND result = :mark"
        guarded = {"run_id": run_id, "mark": mark}
        size = sum(map(len, texts))
        changed, *_ = await self._database.write(
            SqlStatement(sql, {**values, "mark": mark, "expires_at": expires_at, "bytes": size}),
            *(
                SqlStatement(f"DELETE FROM {table} WHERE run_id = :run_id AND EXISTS ({is_ended})", guarded)
                for table in ("checkpoint_parts", "pending_calls", "recorded_calls")
            ),
            *(
                SqlStatement(
                    "INSERT INTO checkpoint_parts (run_id, part, data)"
                    f" SELECT :run_id, :part, :data WHERE EXISTS ({is_ended})",
                    {**guarded, "part": number, "data": text},
                )
                for number, text in enumerate(texts)
            ),
        )
        return changed.row_count == 1

    async def result(self, run_id: str) -> list[bytes] | None:
        """Returns the parts of the result of a run that has ended."""
        sql = """
            SELECT p.data FROM checkpoints c JOIN checkpoint_parts p ON p.run_id = c.run_id
            WHERE c.run_id = :run_id AND c.result IS NOT NULL ORDER BY p.part
        """
        texts = [text for (text,) in await self._database.scan(sql, run_id=run_id)]
        parts = [
            await self._encryption.decrypt_bytes(text, *_result_context(run_id, number, len(texts)))
            for number, text in enumerate(texts)
        ]
        return parts or None

    async def stored_bytes(self, owner: str, other_than: str) -> int:
        """Returns the size of the suspended runs and results of an owner, excluding those of one run."""
        sql = "SELECT COALESCE(SUM(bytes), 0) FROM checkpoints WHERE owner = :owner AND run_id <> :run_id"
        return int((await self._database.scan(sql, owner=owner, run_id=other_than))[0][0])

    async def with_answers(self, bundles: Collection[str], protocols: Collection[str]) -> list[CheckpointRow]:
        """Returns runs of these guest bundles and protocols that can continue. Such a run is suspended, or
        its process has died before the run called a tool. One of its calls has a result or was in flight, or
        it has no pending calls.
        """
        columns = ", ".join(f"c.{name}" for name in _FIELDS)
        sql = f"""
            SELECT {columns} FROM checkpoints c
            WHERE (c.state = 'suspended' OR (c.state = 'running' AND c.held_until < :now))
                AND c.bundle IN :bundles AND c.protocol IN :protocols AND c.expires_at > :now AND (
                    EXISTS (
                        SELECT 1 FROM pending_calls p
                        WHERE p.run_id = c.run_id AND (p.answer IS NOT NULL OR p.in_flight IS NOT NULL)
                    )
                    OR NOT EXISTS (SELECT 1 FROM pending_calls p WHERE p.run_id = c.run_id)
                )
            ORDER BY c.created_at, c.run_id LIMIT {MAX_LISTED}
        """
        return [
            _row(row)
            for row in await self._database.scan(
                sql, bundles=[*bundles], now=now(), protocols=[*protocols] or [""]
            )
        ]

    async def interrupted(self) -> list[CheckpointRow]:
        """Returns runs that cannot be continued, because their process died after they had called a tool."""
        sql = f"""
            SELECT {_COLUMNS} FROM checkpoints WHERE state = 'called' AND held_until < :now
            ORDER BY held_until LIMIT {MAX_LISTED}
        """
        return [_row(row) for row in await self._database.scan(sql, now=now())]

    async def delete_expired(self, before: str) -> list[CheckpointRow]:
        """Deletes runs that expired before a time. Returns them."""
        sql = f"""
            DELETE FROM checkpoints
            WHERE expires_at < :before
                AND (state IN ('suspended', 'ended') OR (state = 'running' AND held_until < :now))
            RETURNING {_COLUMNS}
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"before": before, "now": now()}))
        return [_row(row) for row in changed.rows]


def _row(values: Sequence[object]) -> CheckpointRow:
    return msgspec.convert(dict(zip(_FIELDS, values, strict=True)), CheckpointRow)


def _part_context(row: CheckpointRow, number: int, count: int) -> tuple[str, ...]:
    return "checkpoint", row.run_id, row.owner, row.bundle, str(row.generation), f"{number}/{count}"


def _question_context(run_id: str, call_id: str) -> tuple[str, ...]:
    return "question", run_id, call_id


def _message_context(run_id: str, call_id: str) -> tuple[str, ...]:
    return "message", run_id, call_id


def _result_context(run_id: str, number: int = 0, count: int = 0) -> tuple[str, ...]:
    return "result of a suspended run", run_id, f"{number}/{count}"


def _answer_context(run_id: str, call_id: str) -> tuple[str, ...]:
    return "answer", run_id, call_id
