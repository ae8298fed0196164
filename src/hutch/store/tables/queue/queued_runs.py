"""Table of asynchronous runs. Servers take runs from it, and hold them with a lease that they renew.

Every start of a run gets a new generation. Every write names the generation that the server holds, so that a
server whose lease was taken over changes nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from hutch.errors import VaultError
from hutch.store.backends.base import Database, SqlBatch, SqlStatement, Values
from hutch.store.encryption import ColumnEncryption

QueueState = Literal["delayed", "queued", "running", "ended", "dead"]

MAX_LISTED = 1_000
MAX_OWNERS = 500
"""Maximum number of owners that are considered at once when runs are taken."""
MAX_DELETED = 1_000


class QueuedRunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run without its request and its result. Times are milliseconds since 1970."""

    run_id: str
    owner: str
    key_id: str | None = None
    scopes: str | None = None
    kind: str
    protocol: str
    label: str | None = None
    source: str | None = None
    state: QueueState = "queued"
    priority: int = 0
    created_at: int = 0
    due_at: int = 0
    deadline_at: int | None = None
    max_attempts: int | None = None
    attempts: int = 0
    generation: int = 0
    holder: str | None = None
    held_until: int | None = None
    has_effects: bool = False
    is_cancelled: bool = False
    idempotency_key: str | None = None
    digest: str = ""
    started_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state not in ("ended", "dead")

    @property
    def is_waiting(self) -> bool:
        return self.state in ("delayed", "queued")


class NewQueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not stored yet."""

    row: QueuedRunRow
    request: bytes
    webhook: bytes | None = None
    delay_ms: int = 0
    deadline_ms: int | None = None
    """Time from now after which the run is not started any more, and stopped if it runs."""


class EndOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """End of a run, with the webhook message that reports it."""

    state: Literal["ended", "dead"] = "ended"
    outcome: str
    result: bytes
    delivery: SqlStatement | None = None
    """Statement that adds the message. It must have no effect unless the run has ended with this generation.
    """


_FIELDS = tuple(QueuedRunRow.__struct_fields__)
COLUMNS = ", ".join(_FIELDS)
_INSERT = """
    INSERT INTO queued_runs (
        run_id, owner, key_id, scopes, kind, protocol, label, source, state, priority, created_at, place,
        due_at, deadline_at, max_attempts, attempts, generation, has_effects, is_cancelled, idempotency_key,
        digest, request, webhook
    ) VALUES (
        :run_id, :owner, :key_id, :scopes, :kind, :protocol, :label, :source, :state, :priority, clock_ms(),
        :place, clock_ms() + :delay_ms, clock_ms() + CAST(:deadline_ms AS BIGINT), :max_attempts, 0, 0, FALSE,
        FALSE, :idempotency_key, :digest, :request, :webhook
    ) ON CONFLICT DO NOTHING
"""
_OWNERS = f"""
    WITH RECURSIVE waiting (owner, number) AS (
        SELECT (SELECT MIN(owner) FROM queued_runs WHERE state = 'queued'), 1
        UNION ALL
        SELECT (SELECT MIN(q.owner) FROM queued_runs q WHERE q.state = 'queued' AND q.owner > w.owner),
            w.number + 1
        FROM waiting w WHERE w.owner IS NOT NULL AND w.number < {MAX_OWNERS}
    )
    SELECT owner FROM waiting WHERE owner IS NOT NULL
"""
_TAKE = f"""
    UPDATE queued_runs SET state = 'running', generation = generation + 1, attempts = attempts + 1,
        holder = :holder, held_until = clock_ms() + :lease_ms, started_at = clock_ms()
    WHERE state = 'queued' AND run_id IN (
        SELECT run_id FROM queued_runs WHERE state = 'queued' AND owner = :owner
        ORDER BY priority DESC, created_at, place LIMIT :count /*postgres: FOR UPDATE SKIP LOCKED*/
    )
    RETURNING {COLUMNS}, request, clock_ms()
"""
_TAKE_OVER = f"""
    UPDATE queued_runs SET generation = generation + 1, holder = :holder, held_until = clock_ms() + :lease_ms
    WHERE run_id = :run_id AND generation = :generation AND state = 'running' AND held_until < clock_ms()
    RETURNING {COLUMNS}
"""
_IS_HELD = "run_id = :run_id AND generation = :generation AND state = 'running'"


class QueuePulse(NamedTuple):
    has_queued: bool
    due_in_ms: int | None
    """Time until the next delayed run is due; None if there is none."""
    has_expired: bool
    """True if a lease has expired."""
    has_late: bool
    """True if a run has not started before its deadline."""


class QueueLoad(NamedTuple):
    runs: Mapping[str, int]
    """Number of runs by state."""
    oldest_waiting_ms: int
    """Time since the oldest queued run was due; 0 if there is none."""


class TakenRun(msgspec.Struct, frozen=True):
    """A run that this server holds."""

    row: QueuedRunRow
    request: bytes
    now: int
    """Time of the database when the run was taken."""
    problem: str | None = None
    """Reason why the request cannot be decrypted."""


class QueuedRunTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    # --- adding ---

    async def encrypt(self, run: NewQueuedRun) -> dict[str, Any]:
        """Returns the values of a row, with the request and the webhook encrypted. Call this before the
        transaction that adds the rows, so that the transaction is short.
        """
        row = run.row
        webhook = None
        if run.webhook is not None:
            webhook = await self._encryption.encrypt_bytes(run.webhook, *_context("webhook", row.run_id))
        return {
            **{name: getattr(row, name) for name in _FIELDS},
            "state": "delayed" if run.delay_ms > 0 else "queued",
            "delay_ms": run.delay_ms,
            "deadline_ms": run.deadline_ms,
            "request": await self._encryption.encrypt_bytes(run.request, *_context("request", row.run_id)),
            "webhook": webhook,
        }

    async def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds encrypted rows in one transaction. A row whose idempotency key is already stored for its owner
        is left out.
        """
        await self._database.write_batches(SqlBatch(_INSERT, _placed(rows)))

    def statements(self, rows: Sequence[Mapping[str, Any]]) -> list[SqlStatement]:
        """Returns statements that add encrypted rows, for a transaction with other statements."""
        return [SqlStatement(_INSERT, row) for row in _placed(rows)]

    async def with_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """Returns the runs that were added with these pairs of an owner and an idempotency key, with the
        digests of their requests. Pairs that no run has are left out.
        """
        sql = """
            SELECT owner, idempotency_key, run_id, digest FROM queued_runs
            WHERE owner IN :owners AND idempotency_key IN :keys
        """
        owners, names = sorted({owner for owner, _ in keys}), sorted({key for _, key in keys})
        rows = await self._database.read(sql, owners=owners, keys=names)
        return {(owner, key): (run_id, digest) for owner, key, run_id, digest in rows}

    async def count_open(self, owner: str, limit: int) -> int:
        """Returns how many runs of an owner are waiting. Counts up to `limit`."""
        sql = """
            SELECT COUNT(*) FROM (
                SELECT 1 FROM queued_runs WHERE owner = :owner AND state = 'queued' LIMIT :limit
            ) AS waiting
        """
        return int((await self._database.read(sql, owner=owner, limit=limit))[0][0])

    # --- taking and holding ---

    async def waiting_owners(self) -> list[str]:
        """Returns owners that have queued runs; at most MAX_OWNERS."""
        return [owner for (owner,) in await self._database.read(_OWNERS)]

    async def take(self, counts: Mapping[str, int], holder: str, lease_ms: int) -> list[TakenRun]:
        """Takes up to the given number of queued runs of each owner: those with the highest priority first,
        then the oldest.
        """
        statements = [
            SqlStatement(_TAKE, {"owner": owner, "count": count, "holder": holder, "lease_ms": lease_ms})
            for owner, count in counts.items()
        ]
        taken = await self._database.write(*statements)
        return [await self._taken(row) for result in taken for row in result.rows]

    async def take_over(
        self, run_id: str, generation: int, holder: str, lease_ms: int
    ) -> QueuedRunRow | None:
        """Takes a run whose lease has expired. Returns None if the lease was renewed or another server has
        taken the run.
        """
        values = {"run_id": run_id, "generation": generation, "holder": holder, "lease_ms": lease_ms}
        (changed,) = await self._database.write(SqlStatement(_TAKE_OVER, values))
        return _row(changed.rows[0]) if changed.rows else None

    async def expired_leases(self) -> list[QueuedRunRow]:
        sql = f"""
            SELECT {COLUMNS} FROM queued_runs WHERE state = 'running' AND held_until < clock_ms()
            ORDER BY held_until LIMIT 100
        """
        return [_row(row) for row in await self._database.scan(sql)]

    async def renew(self, held: Mapping[str, int], lease_ms: int) -> tuple[set[str], set[str]]:
        """Renews leases, given by run and generation. Returns the runs that this server still holds, and
        those among them whose cancellation was requested.
        """
        sql = f"""
            UPDATE queued_runs SET held_until = clock_ms() + :lease_ms WHERE {_IS_HELD}
            RETURNING run_id, is_cancelled
        """
        results = await self._database.write(
            *(
                SqlStatement(sql, {"run_id": run_id, "generation": generation, "lease_ms": lease_ms})
                for run_id, generation in sorted(held.items())
            )
        )
        rows = [row for result in results for row in result.rows]
        return {run_id for run_id, _ in rows}, {run_id for run_id, is_cancelled in rows if is_cancelled}

    async def mark_effects(self, run_id: str, generation: int) -> bool:
        """Records that the run may have effects from now on. Returns False if another server has the run, or
        if the cancellation of the run was requested.
        """
        sql = f"UPDATE queued_runs SET has_effects = TRUE WHERE {_IS_HELD} AND NOT is_cancelled"
        (changed,) = await self._database.write(
            SqlStatement(sql, {"run_id": run_id, "generation": generation})
        )
        return changed.row_count == 1

    async def pulse(self) -> QueuePulse:
        """Returns which kinds of work wait in the queue, with one query."""
        sql = """
            SELECT EXISTS (SELECT 1 FROM queued_runs WHERE state = 'queued'),
                (SELECT MIN(due_at) FROM queued_runs WHERE state = 'delayed') - clock_ms(),
                EXISTS (SELECT 1 FROM queued_runs WHERE state = 'running' AND held_until < clock_ms()),
                EXISTS (
                    SELECT 1 FROM queued_runs
                    WHERE deadline_at < clock_ms() AND deadline_at IS NOT NULL AND ended_at IS NULL
                        AND state <> 'running'
                )
        """
        has_queued, due_in, has_expired, has_late = (await self._database.read(sql))[0]
        return QueuePulse(bool(has_queued), due_in, bool(has_expired), bool(has_late))

    async def promote(self) -> int:
        """Queues delayed runs that are due. Returns their number."""
        sql = "UPDATE queued_runs SET state = 'queued' WHERE state = 'delayed' AND due_at <= clock_ms()"
        (changed,) = await self._database.write(SqlStatement(sql, {}))
        return changed.row_count

    async def past_deadline(self) -> list[QueuedRunRow]:
        """Returns runs that have not started before their deadline."""
        sql = f"""
            SELECT {COLUMNS} FROM queued_runs
            WHERE deadline_at < clock_ms() AND deadline_at IS NOT NULL AND ended_at IS NULL
                AND state <> 'running'
            ORDER BY deadline_at LIMIT {MAX_LISTED}
        """
        return [_row(row) for row in await self._database.scan(sql)]

    # --- ending ---

    async def put_back(
        self, run_id: str, generation: int, delay_ms: int, *, counts: bool, keeps_effects: bool = False
    ) -> bool:
        """Queues a run again, after a delay. With `counts` False, this start does not count as one of the
        run's attempts. Returns False if another server has the run.
        """
        sql = f"""
            UPDATE queued_runs SET state = :state, due_at = clock_ms() + :delay_ms, holder = NULL,
                held_until = NULL, attempts = attempts - :uncounted,
                has_effects = (has_effects AND :keeps_effects)
            WHERE {_IS_HELD}
        """
        values = {
            "run_id": run_id,
            "generation": generation,
            "state": "delayed" if delay_ms > 0 else "queued",
            "delay_ms": delay_ms,
            "uncounted": 0 if counts else 1,
            "keeps_effects": keeps_effects,
        }
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def end(self, run_id: str, generation: int, end: EndOfRun, *, is_waiting: bool = False) -> bool:
        """Stores the result of a run that this server holds or, with `is_waiting`, of one that has not
        started. Returns False if the run is no longer in that state.
        """
        condition = "run_id = :run_id AND generation = :generation"
        states = "('delayed', 'queued')" if is_waiting else "('running')"
        sql = f"""
            UPDATE queued_runs SET state = :state, outcome = :outcome, result = :result, holder = NULL,
                held_until = NULL, ended_at = clock_ms()
            WHERE {condition} AND state IN {states}
        """
        values = {
            "run_id": run_id,
            "generation": generation,
            "state": end.state,
            "outcome": end.outcome,
            "result": await self._encryption.encrypt_bytes(end.result, *_context("result", run_id)),
        }
        statements = [SqlStatement(sql, values), *([] if end.delivery is None else [end.delivery])]
        changed = await self._database.write(*statements)
        return changed[0].row_count == 1

    async def request_cancel(self, run_id: str) -> bool:
        """Asks the server that holds a run to cancel it. Returns False if no server holds the run."""
        sql = "UPDATE queued_runs SET is_cancelled = TRUE WHERE run_id = :run_id AND state = 'running'"
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id}))
        return changed.row_count == 1

    async def revive(self, run_id: str) -> bool:
        """Queues a dead letter again; it gets its full number of attempts. Returns False if the run is not a
        dead letter.
        """
        sql = """
            UPDATE queued_runs SET state = 'queued', attempts = 0, has_effects = FALSE, is_cancelled = FALSE,
                generation = generation + 1, due_at = clock_ms(), deadline_at = NULL, ended_at = NULL,
                outcome = NULL, result = NULL
            WHERE run_id = :run_id AND state = 'dead'
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id}))
        return changed.row_count == 1

    async def discard(self, run_id: str) -> bool:
        """Turns a dead letter into an ended run. Returns False if the run is not a dead letter."""
        sql = "UPDATE queued_runs SET state = 'ended' WHERE run_id = :run_id AND state = 'dead'"
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id}))
        return changed.row_count == 1

    async def prune(self, ended_before: int, dead_before: int) -> int:
        """Deletes runs that ended before a time, and dead letters from before another time."""
        sql = f"""
            DELETE FROM queued_runs WHERE run_id IN (
                SELECT run_id FROM queued_runs
                WHERE ended_at < :before AND state = :state ORDER BY ended_at LIMIT {MAX_DELETED}
            )
        """
        deleted = 0
        for state, before in (("ended", ended_before), ("dead", dead_before)):
            while True:
                (changed,) = await self._database.write(SqlStatement(sql, {"before": before, "state": state}))
                deleted += changed.row_count
                if changed.row_count < MAX_DELETED:
                    break
        return deleted

    # --- reading ---

    async def now(self) -> int:
        """Returns the time of the database."""
        return int((await self._database.read("SELECT clock_ms()"))[0][0])

    async def get(self, run_id: str) -> QueuedRunRow | None:
        sql = f"SELECT {COLUMNS} FROM queued_runs WHERE run_id = :run_id"
        rows = await self._database.read(sql, run_id=run_id)
        return _row(rows[0]) if rows else None

    async def result(self, run_id: str) -> bytes | None:
        """Returns the result of a run that has ended, as JSON text. Raises VaultError."""
        sql = "SELECT result FROM queued_runs WHERE run_id = :run_id AND result IS NOT NULL"
        rows = await self._database.read(sql, run_id=run_id)
        if not rows:
            return None
        return await self._encryption.decrypt_bytes(rows[0][0], *_context("result", run_id))

    async def webhook(self, run_id: str) -> bytes | None:
        """Returns the webhook of a run as JSON text, or None if the run has no webhook. Raises VaultError."""
        sql = "SELECT webhook FROM queued_runs WHERE run_id = :run_id AND webhook IS NOT NULL"
        rows = await self._database.read(sql, run_id=run_id)
        if not rows:
            return None
        return await self._encryption.decrypt_bytes(rows[0][0], *_context("webhook", run_id))

    async def list(
        self, states: Sequence[QueueState], owner: str | None = None, limit: int = MAX_LISTED
    ) -> builtins.list[QueuedRunRow]:
        """Lists runs in these states, newest first."""
        condition = "" if owner is None else "AND owner = :owner"
        sql = f"""
            SELECT {COLUMNS} FROM queued_runs WHERE state IN :states {condition}
            ORDER BY created_at DESC, place DESC LIMIT :limit
        """
        values: dict[str, Any] = {"states": [*states], "limit": min(limit, MAX_LISTED)}
        if owner is not None:
            values["owner"] = owner
        return [_row(row) for row in await self._database.scan(sql, **values)]

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        """Returns the number of open runs and of dead letters by state, of one owner or of all."""
        condition, values = ("", {}) if owner is None else ("AND owner = :owner", {"owner": owner})
        sql = f"""
            SELECT state, COUNT(*) FROM queued_runs
            WHERE state IN ('delayed', 'queued', 'running', 'dead') {condition} GROUP BY state
        """
        return {state: int(count) for state, count in await self._database.scan(sql, **values)}

    async def load(self, limit: int) -> QueueLoad:
        """Counts the open runs and the dead letters of all owners, at most `limit` of each state."""
        states: tuple[QueueState, ...] = ("delayed", "queued", "running", "dead")
        # Write each state into the text instead of passing it as a parameter, because the index of a state is
        # used only if the database sees the state when it plans the query.
        sql = " UNION ALL ".join(
            f"""
            SELECT '{state}', COUNT(*), COALESCE(clock_ms() - MIN(due_at), 0) FROM (
                SELECT due_at FROM queued_runs WHERE state = '{state}' LIMIT :limit
            ) AS counted_{state}
            """
            for state in states
        )
        rows = {state: (count, age) for state, count, age in await self._database.scan(sql, limit=limit)}
        runs: dict[str, int] = {state: int(rows[state][0]) for state in states}
        return QueueLoad(runs, max(0, int(rows["queued"][1])))

    async def _taken(self, values: Values) -> TakenRun:
        *fields, request, now = values
        row = _row(fields)
        try:
            text = await self._encryption.decrypt_bytes(request, *_context("request", row.run_id))
        except VaultError as error:
            # Return the problem instead of raising it, so that the other runs of the same batch can start.
            return TakenRun(row, b"", now, str(error))
        return TakenRun(row, text, now)


def ended_with(run_id: str, generation: int) -> tuple[str, dict[str, Any]]:
    """Returns a condition, with its parameters, that is true if the run has ended with this generation."""
    condition = """
        EXISTS (
            SELECT 1 FROM queued_runs
            WHERE run_id = :run_id AND generation = :generation AND ended_at IS NOT NULL
        )
    """
    return condition, {"run_id": run_id, "generation": generation}


def _row(values: Sequence[Any]) -> QueuedRunRow:
    fields = dict(zip(_FIELDS, values, strict=True))
    fields["has_effects"], fields["is_cancelled"] = bool(fields["has_effects"]), bool(fields["is_cancelled"])
    return QueuedRunRow(**fields)


def _placed(rows: Sequence[Mapping[str, Any]]) -> builtins.list[dict[str, Any]]:
    return [{**row, "place": place} for place, row in enumerate(rows)]


def _context(column: str, run_id: str) -> tuple[str, ...]:
    return f"queued run {column}", run_id
