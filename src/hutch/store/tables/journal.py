"""Tables of flow runs, their journals and requests to them, with everything that is needed to resume a run.

Only the process that holds a run may write to it. A write of a previous holder fails. Inputs, results and
events are encrypted and bound to their row, so that text copied to another row cannot be decrypted.
"""

from __future__ import annotations

import builtins
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from hutch.errors import VaultError
from hutch.store.backends.base import Database, SqlStatement, Values, check_storable
from hutch.store.encryption import ColumnEncryption
from hutch.store.models import FlowRunHead, FlowRunRow, RunRow, new_id
from hutch.store.tables.runs import RUN_COLUMNS, message_context

logger = logging.getLogger("hutch.store")

_HEAD_FIELDS = tuple(FlowRunHead.__struct_fields__)
_FIELDS = tuple(FlowRunRow.__struct_fields__)
HEAD_COLUMNS = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
ENCRYPTED_COLUMNS = ("document", "inputs", "options", "summary")
MAX_LISTED = 1_000
MAX_DELETED_LINES = 2_000
"""Maximum number of lines that one transaction deletes, so that other writers get their turn. A single run
with more lines is deleted in one transaction.
"""
MAX_DELETED_NUMBERS = 500
"""Maximum number of entries that one statement deletes."""
MAX_QUERIED_RUNS = 500
"""Maximum number of runs that one query asks for."""
MAX_TAKEN_REQUESTS = 100
"""Maximum number of requests that one query reads."""


RECORD_KIND = "record"
"""Kind of the records of finished steps. A record has bounded copies of the step's input and output. The
number of a record is the number of the step's result plus 1, so that no separate index has to be updated for
it.
"""


class JournalEntry(NamedTuple):
    """One line of a journal: an event, a record or, if `step` is set, the result of that step."""

    number: int
    body: str
    """Event or result as JSON text."""
    step: str | None = None
    kind: str = ""
    """Type of an event, or state of a finished step."""
    subject: str | None = None
    """Step whose approval the event requests or settles."""


class StepCounts(NamedTuple):
    completed: int
    failed: int


def _run_head_from_row(row: Values) -> FlowRunHead:
    return FlowRunHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def run_context(column: str, run_id: str, owner: str) -> tuple[str, ...]:
    return "flow run", run_id, owner, column


def entry_context(run_id: str, entry: JournalEntry) -> tuple[str, ...]:
    return "flow journal", run_id, str(entry.number), entry.kind, entry.step or "", entry.subject or ""


def request_context(run_id: str, id: str) -> tuple[str, ...]:
    return "flow request", run_id, id


_request_numbers = itertools.count(1)


class JournalTable:
    def __init__(self, database: Database, encryption: ColumnEncryption) -> None:
        self._database = database
        self._encryption = encryption

    # --- runs ---

    async def add(self, row: FlowRunRow) -> bool:
        """Inserts a run. Returns False if a run with the same id exists."""
        sql = f"""
            INSERT INTO flow_runs ({COLUMNS}, claimed_steps)
            VALUES ({", ".join(f":{name}" for name in _FIELDS)}, 0)
            ON CONFLICT (run_id) DO NOTHING
        """
        # Reject an id that cannot be stored before anything is encrypted with it.
        check_storable({"run_id": row.run_id, "owner": row.owner})
        values = msgspec.structs.asdict(row)
        for name in ENCRYPTED_COLUMNS:
            if values[name] is not None:
                context = run_context(name, row.run_id, row.owner)
                values[name] = await self._encryption.encrypt(values[name], *context)
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def get(self, run_id: str) -> FlowRunRow | None:
        await self._encryption.ready()
        sql = f"SELECT {COLUMNS} FROM flow_runs WHERE run_id = :run_id"
        rows = await self._database.read(sql, run_id=run_id)
        return await self._run(rows[0]) if rows else None

    async def head(self, run_id: str) -> FlowRunHead | None:
        sql = f"SELECT {HEAD_COLUMNS} FROM flow_runs WHERE run_id = :run_id"
        rows = await self._database.read(sql, run_id=run_id)
        return _run_head_from_row(rows[0]) if rows else None

    async def list(
        self, *owners: str, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[FlowRunHead]:
        """Lists the runs of these owners, newest first. Without owners, lists all runs.

        `before` is the creation time and the id of the last run of the previous page.
        """
        created, run_id = before or ("\U0010ffff", "")
        limit = max(0, min(limit, MAX_LISTED))
        heads: builtins.list[FlowRunHead] = []
        # One query per owner, because the index is sorted by time only within an owner.
        for owner in owners or (None,):
            values = {"created": created, "run_id": run_id, "limit": limit}
            condition = ""
            if owner is not None:
                values["owner"] = owner
                condition = "owner = :owner AND "
            sql = f"""
                SELECT {HEAD_COLUMNS} FROM flow_runs
                WHERE {condition}(created_at, run_id) < (:created, :run_id)
                ORDER BY created_at DESC, run_id DESC LIMIT :limit
            """
            heads += [_run_head_from_row(row) for row in await self._database.scan(sql, **values)]
        heads.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
        return heads[:limit]

    async def open_runs(self) -> builtins.list[FlowRunHead]:
        """Lists the newest unfinished runs of all owners, at most MAX_LISTED."""
        sql = f"""
            SELECT {HEAD_COLUMNS} FROM flow_runs WHERE ended_at IS NULL
            ORDER BY created_at DESC LIMIT {MAX_LISTED}
        """
        return [_run_head_from_row(row) for row in await self._database.scan(sql)]

    async def unfinished(self, origin: str) -> builtins.list[FlowRunHead]:
        """Lists unfinished runs with this origin, oldest first."""
        sql = f"""
            SELECT {HEAD_COLUMNS} FROM flow_runs WHERE ended_at IS NULL AND origin = :origin
            ORDER BY created_at, run_id
        """
        return [_run_head_from_row(row) for row in await self._database.scan(sql, origin=origin)]

    async def claim(self, run: FlowRunHead, holder: str, at: str) -> FlowRunRow | None:
        """Makes `holder` the holder of a run. Returns None if the holder or the status has changed since
        `run` was read.
        """
        await self._encryption.ready()
        sql = f"""
            UPDATE flow_runs SET
                holder = :holder, seen_at = :at, status = 'running', outcome = NULL, summary = NULL,
                started_at = COALESCE(started_at, :at), ended_at = NULL,
                claims = CASE WHEN claimed_steps < {_STEP_COUNT} THEN 1 ELSE claims + 1 END,
                claimed_steps = {_STEP_COUNT}
            WHERE run_id = :run_id AND holder = :before AND status = :status
            RETURNING {COLUMNS}
        """
        values = {"run_id": run.run_id, "before": run.holder, "status": run.status}
        (changed,) = await self._database.write(SqlStatement(sql, {**values, "holder": holder, "at": at}))
        return await self._run(changed.rows[0]) if changed.rows else None

    async def heartbeat(self, run_id: str, holder: str, at: str) -> bool:
        """Renews the lease of the holder. Returns False if another process holds the run."""
        sql = "UPDATE flow_runs SET seen_at = :at WHERE run_id = :run_id AND holder = :holder"
        values = {"run_id": run_id, "holder": holder, "at": at}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        return changed.row_count == 1

    async def release(self, run_id: str, holder: str) -> bool:
        """Releases an unfinished run without counting this start in `claims`. Returns False if another
        process holds the run.
        """
        sql = """
            UPDATE flow_runs SET holder = '', claims = claims - 1 WHERE run_id = :run_id AND holder = :holder
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id, "holder": holder}))
        return changed.row_count == 1

    async def reopen(self, run_id: str, origin: str) -> bool:
        """Makes a failed run pending again. Returns False if the run has not failed."""
        sql = """
            UPDATE flow_runs SET
                status = 'pending', outcome = NULL, summary = NULL, ended_at = NULL, claims = 0,
                origin = :origin
            WHERE run_id = :run_id AND status = 'failed'
        """
        (changed,) = await self._database.write(SqlStatement(sql, {"run_id": run_id, "origin": origin}))
        return changed.row_count == 1

    async def restart(self, run: FlowRunHead, steps: set[str], event: str, origin: str) -> bool:
        """Makes a run pending again, so that these steps run again. Deletes the results and records of these
        steps and of their inner steps, and adds `event` to the journal. Returns False, without any change, if
        the run has changed since `run` was read.
        """
        await self._encryption.ready()
        reset = """
            UPDATE flow_runs SET
                status = 'pending', outcome = NULL, summary = NULL, ended_at = NULL, holder = '', claims = 0,
                claimed_steps = 0, started_at = NULL, origin = :origin
            WHERE run_id = :run_id AND status = :status AND holder = :holder
        """
        is_reset = "EXISTS (SELECT 1 FROM flow_runs WHERE run_id = :run_id AND status = 'pending')"
        delete = f"DELETE FROM flow_journal WHERE run_id = :run_id AND number IN :numbers AND {is_reset}"
        add = f"""
            INSERT INTO flow_journal (run_id, number, kind, body)
            SELECT run_id, :number, :kind, :body FROM flow_runs WHERE run_id = :run_id AND {is_reset}
        """
        run_id = {"run_id": run.run_id}
        rows = await self._database.scan(_STEP_NUMBERS, **run_id)
        records = {number for (number,) in await self._database.scan(_RECORD_NUMBERS, **run_id)}
        results = [number for number, step in rows if step.partition("/")[0] in steps]
        numbers = results + [number + 1 for number in results if number + 1 in records]
        entry = JournalEntry(await self.last_number(run.run_id) + 1, event, kind="log")
        body = await self._encryption.encrypt(event, *entry_context(run.run_id, entry))
        changed = await self._database.write(
            SqlStatement(reset, {**run_id, "origin": origin, "status": run.status, "holder": run.holder}),
            *(
                SqlStatement(delete, {**run_id, "numbers": numbers[start : start + MAX_DELETED_NUMBERS]})
                for start in range(0, len(numbers), MAX_DELETED_NUMBERS)
            ),
            SqlStatement(add, {**run_id, "number": entry.number, "kind": entry.kind, "body": body}),
        )
        return changed[0].row_count == 1

    async def finish(self, run: FlowRunHead, record: RunRow, summary: str, at: str) -> bool:
        """Ends a run and stores `record` in the table of all runs.

        Returns False, without any change, if another process holds the run or the run has already ended.
        """
        end = """
            UPDATE flow_runs SET
                status = :status, outcome = :outcome, summary = :summary, ended_at = :at, holder = ''
            WHERE run_id = :run_id AND holder = :holder AND ended_at IS NULL
        """
        # Update an existing record, because a resumed run has one from the first time that it ended.
        store_record = f"""
            INSERT INTO runs ({RUN_COLUMNS})
            SELECT {", ".join(f":{name}" for name in RunRow.__struct_fields__)}
            FROM flow_runs WHERE run_id = :run_id AND ended_at = :at AND summary = :summary
            ON CONFLICT (run_id) DO UPDATE SET
                duration_ms = excluded.duration_ms, outcome = excluded.outcome, details = excluded.details,
                recorded = excluded.recorded, error_message = excluded.error_message
            WHERE runs.protocol = excluded.protocol
        """
        encrypted = await self._encryption.encrypt(summary, *run_context("summary", run.run_id, run.owner))
        if record.error_message is not None:
            message = await self._encryption.encrypt(record.error_message, *message_context(run.run_id))
            record = msgspec.structs.replace(record, error_message=message)
        ended = {"run_id": run.run_id, "summary": encrypted, "at": at}
        status = "completed" if record.outcome == "ok" else "failed"
        changed = await self._database.write(
            SqlStatement(end, {**ended, "holder": run.holder, "status": status, "outcome": record.outcome}),
            SqlStatement(store_record, {**msgspec.structs.asdict(record), **ended}),
        )
        return changed[0].row_count == 1

    async def prune(self, older_than: str) -> int:
        """Deletes runs that ended before `older_than`, with their journals. Returns the number of deleted
        runs.

        Deletes in batches, so that other writers get their turn. A run is deleted completely or not at all,
        so that no half-deleted run can be resumed.
        """
        select = f"""
            SELECT run_id, {_LAST_NUMBER} FROM flow_runs WHERE ended_at IS NOT NULL AND ended_at < :older_than
            ORDER BY ended_at LIMIT 100
        """
        # The condition on `ended_at` skips runs that have been resumed meanwhile.
        sql = "DELETE FROM flow_runs WHERE run_id IN :run_ids AND ended_at < :older_than"
        deleted = 0
        while rows := await self._database.scan(select, older_than=older_than):
            for run_ids in _batches(rows):
                values = {"run_ids": run_ids, "older_than": older_than}
                (changed,) = await self._database.write(SqlStatement(sql, values))
                deleted += changed.row_count
        return deleted

    # --- journal ---

    async def write(self, run_id: str, holder: str, entries: Sequence[JournalEntry]) -> bool:
        """Writes all entries. Writes none and returns False if another process holds the run.

        It is safe to write the same entries again.
        """
        # The first statement locks the run until all entries are written, so that a process that tries to
        # claim the run has to wait.
        sql = """
            INSERT INTO flow_journal (run_id, number, step, kind, subject, body)
            SELECT run_id, :number, :step, :kind, :subject, :body FROM flow_runs
            WHERE run_id = :run_id AND holder = :holder AND ended_at IS NULL /*postgres: FOR SHARE*/
            ON CONFLICT (run_id, number) DO UPDATE SET
                step = excluded.step, kind = excluded.kind, subject = excluded.subject, body = excluded.body
        """
        rows = [
            {
                "run_id": run_id,
                "holder": holder,
                "number": entry.number,
                "step": entry.step,
                "kind": entry.kind,
                "subject": entry.subject,
                "body": await self._encryption.encrypt(entry.body, *entry_context(run_id, entry)),
            }
            for entry in entries
        ]
        return await self._database.write_many(sql, rows) == len(entries)

    async def steps(self, run_id: str) -> builtins.list[tuple[str, str]]:
        """Returns the finished steps and their results in order. If a step occurs several times, its last
        result counts.
        """
        await self._encryption.ready()
        sql = f"""
            SELECT {_ENTRY_COLUMNS} FROM flow_journal
            WHERE run_id = :run_id AND step IS NOT NULL ORDER BY number
        """
        entries = await self._entries(run_id, await self._database.scan(sql, run_id=run_id))
        return [(entry.step or "", entry.body) for entry in entries]

    async def finished_steps(self, run_id: str) -> set[str]:
        """Returns the steps of the flow itself that have a result."""
        rows = await self._database.scan(_STEP_NUMBERS, run_id=run_id)
        return {step for _, step in rows if "/" not in step}

    async def events(
        self, run_id: str, after: int = 0, limit: int = 500, *, with_records: bool = False
    ) -> builtins.list[JournalEntry]:
        """Returns the events whose number is greater than `after`, in order."""
        await self._encryption.ready()
        condition = "" if with_records else f"AND kind <> '{RECORD_KIND}'"
        sql = f"""
            SELECT {_ENTRY_COLUMNS} FROM flow_journal
            WHERE run_id = :run_id AND number > :after AND step IS NULL {condition}
            ORDER BY number LIMIT :limit
        """
        rows = await self._database.scan(sql, run_id=run_id, after=after, limit=limit)
        return await self._entries(run_id, rows)

    async def records(self, run_id: str, *, limit: int = 100, offset: int = 0) -> builtins.list[JournalEntry]:
        """Returns the newest record of each finished step, in order."""
        await self._encryption.ready()
        sql = f"SELECT {_ENTRY_COLUMNS} {_RECORDS} ORDER BY number LIMIT :limit OFFSET :offset"
        rows = await self._database.scan(sql, run_id=run_id, limit=limit, offset=offset)
        return await self._entries(run_id, rows)

    async def count_records(self, run_id: str) -> int:
        return int((await self._database.scan(f"SELECT COUNT(*) {_RECORDS}", run_id=run_id))[0][0])

    async def open_approvals(
        self, run_id: str, *, step: str | None = None, limit: int = 100, offset: int = 0
    ) -> builtins.list[JournalEntry]:
        """Returns open approval requests in order, for all steps or for one."""
        await self._encryption.ready()
        condition = "" if step is None else "AND subject = :step"
        sql = f"""
            SELECT {_ENTRY_COLUMNS} {_OPEN_APPROVALS} {condition} ORDER BY number LIMIT :limit OFFSET :offset
        """
        values = {"run_id": run_id, "limit": limit, "offset": offset}
        if step is not None:
            values["step"] = step
        return await self._entries(run_id, await self._database.scan(sql, **values))

    async def steps_awaiting_approval(self, run_id: str) -> set[str]:
        await self._encryption.ready()
        return {
            row[0] for row in await self._database.scan(f"SELECT subject {_OPEN_APPROVALS}", run_id=run_id)
        }

    async def waiting_steps(self, run_ids: Sequence[str]) -> dict[str, builtins.list[str]]:
        """Returns the steps that wait for an approval, by run. Runs without such steps are left out. Reads no
        encrypted columns, so no master key is needed.
        """
        waiting: dict[str, builtins.list[str]] = {}
        sql = f"SELECT run_id, subject {_OPEN_APPROVALS_OF_RUNS} ORDER BY run_id, number LIMIT {MAX_LISTED}"
        for start in range(0, len(run_ids), MAX_QUERIED_RUNS):
            chunk = [*run_ids[start : start + MAX_QUERIED_RUNS]]
            for run_id, step in await self._database.scan(sql, run_ids=chunk):
                waiting.setdefault(run_id, []).append(step)
        return waiting

    async def count_open_approvals(self, run_id: str) -> int:
        await self._encryption.ready()
        return int((await self._database.scan(f"SELECT COUNT(*) {_OPEN_APPROVALS}", run_id=run_id))[0][0])

    async def step_counts(self, run_id: str) -> StepCounts:
        """Counts the finished steps of the flow itself. Steps of subflows are not counted."""
        await self._encryption.ready()
        sql = """
            SELECT COUNT(DISTINCT CASE WHEN kind = 'succeeded' THEN step END),
                COUNT(DISTINCT CASE WHEN kind = 'failed' THEN step END)
            FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL AND step NOT LIKE '%/%'
        """
        return StepCounts(*(await self._database.scan(sql, run_id=run_id))[0])

    async def count_results(self, run_id: str) -> int:
        """Counts the results of all steps, including those of subflows and items."""
        sql = "SELECT COUNT(*) FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL"
        return int((await self._database.scan(sql, run_id=run_id))[0][0])

    async def last_number(self, run_id: str) -> int:
        """Returns the highest number of an entry, or 0 if there is none."""
        sql = "SELECT COALESCE(MAX(number), 0) FROM flow_journal WHERE run_id = :run_id"
        return int((await self._database.read(sql, run_id=run_id))[0][0])

    # --- requests ---

    async def add_request(self, run_id: str, body: str, at: str) -> None:
        """Stores a request (cancel or approval) that the process with the run's lease will read."""
        sql = "INSERT INTO flow_requests (run_id, id, body) VALUES (:run_id, :id, :body)"
        # The counter keeps requests within the same millisecond in order.
        id = f"{at} {next(_request_numbers):012} {new_id()}"
        encrypted = await self._encryption.encrypt(body, *request_context(run_id, id))
        await self._database.write(SqlStatement(sql, {"run_id": run_id, "id": id, "body": encrypted}))

    async def take_requests(self, run_id: str) -> builtins.list[str]:
        """Removes and returns the oldest requests for a run, in order. A request that cannot be decrypted is
        dropped.
        """
        await self._encryption.ready()
        select = f"""
            SELECT id, body FROM flow_requests WHERE run_id = :run_id ORDER BY id LIMIT {MAX_TAKEN_REQUESTS}
        """
        rows = await self._database.read(select, run_id=run_id)
        if not rows:
            return []
        bodies: dict[str, str] = {}
        for id, body in rows:
            try:
                bodies[id] = await self._encryption.decrypt(body, *request_context(run_id, id))
            except VaultError as error:
                logger.error("dropped a request for run %s: %s", run_id, error)
        # Delete requests only after decryption, so that they are kept if the keys cannot be read from the
        # database.
        sql = "DELETE FROM flow_requests WHERE run_id = :run_id AND id IN :ids RETURNING id"
        values = {"run_id": run_id, "ids": [id for id, _ in rows]}
        (changed,) = await self._database.write(SqlStatement(sql, values))
        taken = {row[0] for row in changed.rows}
        return [body for id, body in bodies.items() if id in taken]

    # --- encryption ---

    async def _run(self, row: Values) -> FlowRunRow:
        values = dict(zip(_FIELDS, row, strict=True))
        for name in ENCRYPTED_COLUMNS:
            if values[name] is not None:
                context = run_context(name, values["run_id"], values["owner"])
                values[name] = await self._encryption.decrypt(values[name], *context)
        return FlowRunRow(**values)

    async def _entries(self, run_id: str, rows: Sequence[Values]) -> builtins.list[JournalEntry]:
        entries = []
        for row in rows:
            entry = JournalEntry(*row)
            body = await self._encryption.decrypt(entry.body, *entry_context(run_id, entry))
            entries.append(entry._replace(body=body))
        return entries


def _batches(rows: Sequence[Values]) -> Iterator[builtins.list[str]]:
    """Groups runs into batches with a limited number of lines. A run with more lines than that gets its own
    batch.
    """
    batch: builtins.list[str] = []
    lines = 0
    for run_id, line_count in rows:
        if batch and lines + line_count > MAX_DELETED_LINES:
            yield batch
            batch, lines = [], 0
        batch.append(run_id)
        lines += line_count
    if batch:
        yield batch


_ENTRY_COLUMNS = ", ".join(JournalEntry._fields)
_STEP_NUMBERS = "SELECT number, step FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL"
_RECORD_NUMBERS = f"SELECT number FROM flow_journal WHERE run_id = :run_id AND kind = '{RECORD_KIND}'"
_LAST_NUMBER = """(
    SELECT COALESCE(MAX(number), 0) FROM flow_journal WHERE flow_journal.run_id = flow_runs.run_id
)"""
_IS_OPEN = """
    kind = 'approval' AND NOT EXISTS (
        SELECT 1 FROM flow_journal AS later
        WHERE later.run_id = request.run_id AND later.subject = request.subject
            AND later.number > request.number
    )
"""
_OPEN_APPROVALS = f"FROM flow_journal AS request WHERE run_id = :run_id AND {_IS_OPEN}"
_OPEN_APPROVALS_OF_RUNS = f"FROM flow_journal AS request WHERE run_id IN :run_ids AND {_IS_OPEN}"
_RECORDS = f"""
    FROM flow_journal WHERE run_id = :run_id AND kind = '{RECORD_KIND}' AND number IN (
        SELECT MAX(number) + 1 FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL GROUP BY step
    )
"""
_STEP_COUNT = """(
    SELECT COUNT(*) FROM flow_journal WHERE flow_journal.run_id = flow_runs.run_id AND step IS NOT NULL
)"""
