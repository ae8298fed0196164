"""Runs of flows, and what each did so far: enough to go on with one after a crash.

Only the process that holds a run writes of it. Whoever lost it to another is told so by the next write.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hutch.store.database import Database, Statement, Values
from hutch.store.rows import FlowRunHead, FlowRunRow, RunRow, new_id
from hutch.store.runs import COLUMNS as RUN_COLUMNS

_HEAD_FIELDS = tuple(FlowRunHead.__struct_fields__)
_FIELDS = tuple(FlowRunRow.__struct_fields__)
HEAD = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
MOST_LISTED = 1_000


class Entry(NamedTuple):
    """One line of a journal: an event or, with the step, the result of one that is over."""

    number: int
    body: str
    """JSON text."""
    step: str | None = None


class Counts(NamedTuple):
    """Steps that are over."""

    completed: int
    failed: int


def head(row: Values) -> FlowRunHead:
    return FlowRunHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def run(row: Values) -> FlowRunRow:
    return FlowRunRow(**dict(zip(_FIELDS, row, strict=True)))


class Journal:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- runs ---

    async def add(self, row: FlowRunRow) -> bool:
        """False, and nothing happens, if there is one of that id."""
        sql = f"""
            INSERT INTO flow_runs ({COLUMNS}, claimed_steps)
            VALUES ({", ".join(f":{name}" for name in _FIELDS)}, 0)
            ON CONFLICT (run_id) DO NOTHING
        """
        (changed,) = await self._database.write(Statement(sql, msgspec.structs.asdict(row)))
        return changed.touched == 1

    async def get(self, run_id: str) -> FlowRunRow | None:
        sql = f"SELECT {COLUMNS} FROM flow_runs WHERE run_id = :run_id"
        found = await self._database.read(sql, run_id=run_id)
        return run(found[0]) if found else None

    async def head(self, run_id: str) -> FlowRunHead | None:
        sql = f"SELECT {HEAD} FROM flow_runs WHERE run_id = :run_id"
        found = await self._database.read(sql, run_id=run_id)
        return head(found[0]) if found else None

    async def list(
        self, owner: str | None = None, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[FlowRunHead]:
        """An owner's, or everybody's; the newest first.

        `before` is when the last one that was seen was made, and its id.
        """
        created, run_id = before or ("\U0010ffff", "")
        whose = "owner = :owner AND " if owner is not None else ""
        sql = f"""
            SELECT {HEAD} FROM flow_runs WHERE {whose}(created_at, run_id) < (:created, :run_id)
            ORDER BY created_at DESC, run_id DESC LIMIT :limit
        """
        values = {"created": created, "run_id": run_id, "limit": max(0, min(limit, MOST_LISTED))}
        if owner is not None:
            values["owner"] = owner
        return [head(row) for row in await self._database.scan(sql, **values)]

    async def unfinished(self, origin: str) -> builtins.list[FlowRunHead]:
        """Those that are not over, the oldest first."""
        sql = f"""
            SELECT {HEAD} FROM flow_runs WHERE ended_at IS NULL AND origin = :origin
            ORDER BY created_at, run_id
        """
        return [head(row) for row in await self._database.scan(sql, origin=origin)]

    async def claim(self, seen: FlowRunHead, holder: str, at: str) -> FlowRunRow | None:
        """Makes a process the one that runs it, if it still is as it was seen; None if not."""
        sql = f"""
            UPDATE flow_runs SET
                holder = :holder, seen_at = :at, status = 'running', outcome = NULL, summary = NULL,
                started_at = COALESCE(started_at, :at), ended_at = NULL,
                claims = CASE WHEN claimed_steps < {_STEPS} THEN 1 ELSE claims + 1 END,
                claimed_steps = {_STEPS}
            WHERE run_id = :run_id AND holder = :before AND status = :status
            RETURNING {COLUMNS}
        """
        values = {"run_id": seen.run_id, "before": seen.holder, "status": seen.status}
        (changed,) = await self._database.write(Statement(sql, {**values, "holder": holder, "at": at}))
        return run(changed.rows[0]) if changed.rows else None

    async def beat(self, run_id: str, holder: str, at: str) -> bool:
        """The holder is still there. False if it is not the holder any more."""
        sql = "UPDATE flow_runs SET seen_at = :at WHERE run_id = :run_id AND holder = :holder"
        values = {"run_id": run_id, "holder": holder, "at": at}
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched == 1

    async def let_go(self, run_id: str, holder: str) -> bool:
        """Nobody runs it any more, and it is not over: it was not the run's fault."""
        sql = """
            UPDATE flow_runs SET holder = '', claims = claims - 1 WHERE run_id = :run_id AND holder = :holder
        """
        (changed,) = await self._database.write(Statement(sql, {"run_id": run_id, "holder": holder}))
        return changed.touched == 1

    async def reopen(self, run_id: str, origin: str) -> bool:
        """Makes a run that failed one that is to be gone on with. False if it did not fail."""
        sql = """
            UPDATE flow_runs SET
                status = 'pending', outcome = NULL, summary = NULL, ended_at = NULL, claims = 0,
                origin = :origin
            WHERE run_id = :run_id AND status = 'failed'
        """
        (changed,) = await self._database.write(Statement(sql, {"run_id": run_id, "origin": origin}))
        return changed.touched == 1

    async def finish(self, seen: FlowRunHead, record: RunRow, summary: str, at: str) -> bool:
        """It is over; `record` is what is kept of it with the runs of all doors.

        False, and nothing happens, if it has another holder or is over already.
        """
        end = """
            UPDATE flow_runs SET
                status = :status, outcome = :outcome, summary = :summary, ended_at = :at, holder = ''
            WHERE run_id = :run_id AND holder = :holder AND ended_at IS NULL
        """
        # A run that is tried again ends again.
        keep = f"""
            INSERT INTO runs ({RUN_COLUMNS})
            SELECT {", ".join(f":{name}" for name in RunRow.__struct_fields__)}
            FROM flow_runs WHERE run_id = :run_id AND ended_at = :at AND summary = :summary
            ON CONFLICT (run_id) DO UPDATE SET
                duration_ms = excluded.duration_ms, outcome = excluded.outcome, details = excluded.details
            WHERE runs.door = excluded.door
        """
        ended = {"run_id": seen.run_id, "summary": summary, "at": at}
        status = "completed" if record.outcome == "ok" else "failed"
        changed = await self._database.write(
            Statement(end, {**ended, "holder": seen.holder, "status": status, "outcome": record.outcome}),
            Statement(keep, {**msgspec.structs.asdict(record), **ended}),
        )
        return changed[0].touched == 1

    async def prune(self, older_than: str) -> int:
        """Forgets those that were over before, with their journals; how many there were."""
        sql = "DELETE FROM flow_runs WHERE ended_at IS NOT NULL AND ended_at < :older_than"
        (changed,) = await self._database.write(Statement(sql, {"older_than": older_than}))
        return changed.touched

    # --- what they did ---

    async def write(self, run_id: str, holder: str, entries: Sequence[Entry]) -> bool:
        """All of them or, if the run has another holder, none: then False.

        Whoever does not know whether it was done may write the same again.
        """
        sql = """
            INSERT INTO flow_journal (run_id, number, step, body)
            SELECT run_id, :number, :step, :body FROM flow_runs
            WHERE run_id = :run_id AND holder = :holder AND ended_at IS NULL
            ON CONFLICT (run_id, number) DO UPDATE SET step = excluded.step, body = excluded.body
        """
        whose = {"run_id": run_id, "holder": holder}
        touched = await self._database.write_many(sql, [{**whose, **each._asdict()} for each in entries])
        return touched == len(entries)

    async def steps(self, run_id: str) -> builtins.list[tuple[str, str]]:
        """The steps that are over and their results, in order. The last of several counts."""
        sql = """
            SELECT step, body FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL ORDER BY number
        """
        return [(row[0], row[1]) for row in await self._database.scan(sql, run_id=run_id)]

    async def events(self, run_id: str, after: int = 0, limit: int = 500) -> builtins.list[Entry]:
        """Those after a number, in order."""
        sql = """
            SELECT number, body FROM flow_journal
            WHERE run_id = :run_id AND number > :after AND step IS NULL ORDER BY number LIMIT :limit
        """
        found = await self._database.scan(sql, run_id=run_id, after=after, limit=limit)
        return [Entry(row[0], row[1]) for row in found]

    async def asking(self, run_id: str) -> builtins.list[Entry]:
        """Events of steps and approvals, in order: all that tells who waits for somebody's word."""
        sql = """
            SELECT number, body FROM flow_journal
            WHERE run_id = :run_id AND step IS NULL
                AND (body LIKE '{"type":"approv%' OR body LIKE '{"type":"step"%') ORDER BY number
        """
        return [Entry(row[0], row[1]) for row in await self._database.scan(sql, run_id=run_id)]

    async def counts(self, run_id: str) -> Counts:
        """How many steps of the flow itself are over, and how."""
        sql = """
            SELECT COUNT(DISTINCT CASE WHEN body LIKE '{"state":"succeeded"%' THEN step END),
                COUNT(DISTINCT CASE WHEN body LIKE '{"state":"failed"%' THEN step END)
            FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL AND step NOT LIKE '%/%'
        """
        return Counts(*(await self._database.scan(sql, run_id=run_id))[0])

    async def last(self, run_id: str) -> int:
        """The highest number so far, or 0."""
        sql = "SELECT COALESCE(MAX(number), 0) FROM flow_journal WHERE run_id = :run_id"
        return int((await self._database.read(sql, run_id=run_id))[0][0])

    # --- what is asked of them ---

    async def ask(self, run_id: str, body: str, at: str) -> None:
        """Leaves a request for the process that holds a run."""
        sql = "INSERT INTO flow_requests (run_id, id, body) VALUES (:run_id, :id, :body)"
        values = {"run_id": run_id, "id": f"{at} {new_id()}", "body": body}
        await self._database.write(Statement(sql, values))

    async def asked(self, run_id: str) -> builtins.list[str]:
        """Takes the requests for a run, in order."""
        waiting = "SELECT id FROM flow_requests WHERE run_id = :run_id"
        if not await self._database.read(waiting, run_id=run_id):
            return []
        sql = "DELETE FROM flow_requests WHERE run_id = :run_id RETURNING id, body"
        (changed,) = await self._database.write(Statement(sql, {"run_id": run_id}))
        return [row[1] for row in sorted(changed.rows)]


_STEPS = """(
    SELECT COUNT(*) FROM flow_journal WHERE flow_journal.run_id = flow_runs.run_id AND step IS NOT NULL
)"""
