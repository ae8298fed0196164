"""Runs of flows, and what each did so far: enough to go on with one after a crash.

Only the process that holds a run writes of it. Whoever lost it to another is told so by the next write. All
that a run is given, gives and tells is sealed, and bound to its place: a text that was moved does not open.
"""

from __future__ import annotations

import builtins
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from hutch.errors import VaultError
from hutch.store.database import Database, Statement, Values, told
from hutch.store.rows import FlowRunHead, FlowRunRow, RunRow, new_id
from hutch.store.runs import COLUMNS as RUN_COLUMNS
from hutch.store.seals import Seals

logger = logging.getLogger("hutch.store")

_HEAD_FIELDS = tuple(FlowRunHead.__struct_fields__)
_FIELDS = tuple(FlowRunRow.__struct_fields__)
HEAD = ", ".join(_HEAD_FIELDS)
COLUMNS = ", ".join(_FIELDS)
SEALED = ("document", "inputs", "options", "summary")
MOST_LISTED = 1_000
MOST_FORGOTTEN = 2_000
"""Lines that are forgotten at once, unless one run alone has more: others want to write meanwhile."""
MOST_ASKED = 100
"""Requests that are taken at once."""


class Entry(NamedTuple):
    """One line of a journal: an event or, with the step, the result of one that is over."""

    number: int
    body: str
    """JSON text."""
    step: str | None = None
    kind: str = ""
    """Of an event its type, of a result how the step ended."""
    subject: str | None = None
    """The step that somebody is asked about by this event, or not any more."""


class Counts(NamedTuple):
    """Steps that are over."""

    completed: int
    failed: int


def head(row: Values) -> FlowRunHead:
    return FlowRunHead(**dict(zip(_HEAD_FIELDS, row, strict=True)))


def about_run(column: str, run_id: str, owner: str) -> tuple[str, ...]:
    return "flow run", run_id, owner, column


def about_entry(run_id: str, entry: Entry) -> tuple[str, ...]:
    return "flow journal", run_id, str(entry.number), entry.kind, entry.step or "", entry.subject or ""


def about_request(run_id: str, id: str) -> tuple[str, ...]:
    return "flow request", run_id, id


_order = itertools.count(1)


class Journal:
    def __init__(self, database: Database, seals: Seals) -> None:
        self._database = database
        self._seals = seals

    # --- runs ---

    async def add(self, row: FlowRunRow) -> bool:
        """False, and nothing happens, if there is one of that id."""
        sql = f"""
            INSERT INTO flow_runs ({COLUMNS}, claimed_steps)
            VALUES ({", ".join(f":{name}" for name in _FIELDS)}, 0)
            ON CONFLICT (run_id) DO NOTHING
        """
        # Nothing is sealed with what could not be kept.
        told({"run_id": row.run_id, "owner": row.owner})
        values = msgspec.structs.asdict(row)
        for name in SEALED:
            if values[name] is not None:
                values[name] = await self._seals.seal(values[name], *about_run(name, row.run_id, row.owner))
        (changed,) = await self._database.write(Statement(sql, values))
        return changed.touched == 1

    async def get(self, run_id: str) -> FlowRunRow | None:
        await self._seals.ready()
        sql = f"SELECT {COLUMNS} FROM flow_runs WHERE run_id = :run_id"
        found = await self._database.read(sql, run_id=run_id)
        return await self._run(found[0]) if found else None

    async def head(self, run_id: str) -> FlowRunHead | None:
        sql = f"SELECT {HEAD} FROM flow_runs WHERE run_id = :run_id"
        found = await self._database.read(sql, run_id=run_id)
        return head(found[0]) if found else None

    async def list(
        self, *owners: str, limit: int = 100, before: tuple[str, str] | None = None
    ) -> builtins.list[FlowRunHead]:
        """Those of some owners or, where none is named, everybody's; the newest first.

        `before` is when the last one that was seen was made, and its id.
        """
        created, run_id = before or ("\U0010ffff", "")
        most = max(0, min(limit, MOST_LISTED))
        found: builtins.list[FlowRunHead] = []
        # One by one: for each the index has them in order.
        for owner in owners or (None,):
            values = {"created": created, "run_id": run_id, "limit": most}
            whose = ""
            if owner is not None:
                values["owner"] = owner
                whose = "owner = :owner AND "
            sql = f"""
                SELECT {HEAD} FROM flow_runs WHERE {whose}(created_at, run_id) < (:created, :run_id)
                ORDER BY created_at DESC, run_id DESC LIMIT :limit
            """
            found += [head(row) for row in await self._database.scan(sql, **values)]
        found.sort(key=lambda each: (each.created_at, each.run_id), reverse=True)
        return found[:most]

    async def unfinished(self, origin: str) -> builtins.list[FlowRunHead]:
        """Those that are not over, the oldest first."""
        sql = f"""
            SELECT {HEAD} FROM flow_runs WHERE ended_at IS NULL AND origin = :origin
            ORDER BY created_at, run_id
        """
        return [head(row) for row in await self._database.scan(sql, origin=origin)]

    async def claim(self, seen: FlowRunHead, holder: str, at: str) -> FlowRunRow | None:
        """Makes a process the one that runs it, if it still is as it was seen; None if not."""
        await self._seals.ready()
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
        return await self._run(changed.rows[0]) if changed.rows else None

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
        sealed = await self._seals.seal(summary, *about_run("summary", seen.run_id, seen.owner))
        ended = {"run_id": seen.run_id, "summary": sealed, "at": at}
        status = "completed" if record.outcome == "ok" else "failed"
        changed = await self._database.write(
            Statement(end, {**ended, "holder": seen.holder, "status": status, "outcome": record.outcome}),
            Statement(keep, {**msgspec.structs.asdict(record), **ended}),
        )
        return changed[0].touched == 1

    async def prune(self, older_than: str) -> int:
        """Forgets those that were over before, with their journals; how many there were.

        A few at a time, so that others get to write; a run at once, so that nobody goes on with half of one.
        """
        look = f"""
            SELECT run_id, {_LAST} FROM flow_runs WHERE ended_at IS NOT NULL AND ended_at < :older_than
            ORDER BY ended_at LIMIT 100
        """
        # One that is being gone on with by now stays.
        sql = "DELETE FROM flow_runs WHERE run_id IN :run_ids AND ended_at < :older_than"
        forgotten = 0
        while found := await self._database.scan(look, older_than=older_than):
            for run_ids in _batches(found):
                values = {"run_ids": run_ids, "older_than": older_than}
                (changed,) = await self._database.write(Statement(sql, values))
                forgotten += changed.touched
        return forgotten

    # --- what they did ---

    async def write(self, run_id: str, holder: str, entries: Sequence[Entry]) -> bool:
        """All of them or, if the run has another holder, none: then False.

        Whoever does not know whether it was done may write the same again.
        """
        # With the first of them the run is ours until all are written: who wants to claim it waits.
        sql = """
            INSERT INTO flow_journal (run_id, number, step, kind, subject, body)
            SELECT run_id, :number, :step, :kind, :subject, :body FROM flow_runs
            WHERE run_id = :run_id AND holder = :holder AND ended_at IS NULL /*postgres: FOR SHARE*/
            ON CONFLICT (run_id, number) DO UPDATE SET
                step = excluded.step, kind = excluded.kind, subject = excluded.subject, body = excluded.body
        """
        rows = [
            {
                **each._asdict(),
                "body": await self._seals.seal(each.body, *about_entry(run_id, each)),
                "run_id": run_id,
                "holder": holder,
            }
            for each in entries
        ]
        return await self._database.write_many(sql, rows) == len(entries)

    async def steps(self, run_id: str) -> builtins.list[tuple[str, str]]:
        """The steps that are over and their results, in order. The last of several counts."""
        await self._seals.ready()
        sql = f"""
            SELECT {_ENTRY} FROM flow_journal WHERE run_id = :run_id AND step IS NOT NULL ORDER BY number
        """
        found = await self._entries(run_id, await self._database.scan(sql, run_id=run_id))
        return [(each.step or "", each.body) for each in found]

    async def events(self, run_id: str, after: int = 0, limit: int = 500) -> builtins.list[Entry]:
        """Those after a number, in order."""
        await self._seals.ready()
        sql = f"""
            SELECT {_ENTRY} FROM flow_journal
            WHERE run_id = :run_id AND number > :after AND step IS NULL ORDER BY number LIMIT :limit
        """
        found = await self._database.scan(sql, run_id=run_id, after=after, limit=limit)
        return await self._entries(run_id, found)

    async def asking(
        self, run_id: str, *, step: str | None = None, limit: int = 100, offset: int = 0
    ) -> builtins.list[Entry]:
        """What steps, or this one, ask somebody and nobody has answered, in order; so many, after so many."""
        await self._seals.ready()
        one = "" if step is None else "AND subject = :step"
        sql = f"""
            SELECT {_ENTRY} {_ASKING} {one} ORDER BY number LIMIT :limit OFFSET :offset
        """
        values = {"run_id": run_id, "limit": limit, "offset": offset}
        if step is not None:
            values["step"] = step
        return await self._entries(run_id, await self._database.scan(sql, **values))

    async def steps_asking(self, run_id: str) -> set[str]:
        """All that wait for somebody's word."""
        await self._seals.ready()
        return {row[0] for row in await self._database.scan(f"SELECT subject {_ASKING}", run_id=run_id)}

    async def count_asking(self, run_id: str) -> int:
        """How many steps wait for somebody's word."""
        await self._seals.ready()
        return int((await self._database.scan(f"SELECT COUNT(*) {_ASKING}", run_id=run_id))[0][0])

    async def counts(self, run_id: str) -> Counts:
        """How many steps of the flow itself are over, and how."""
        await self._seals.ready()
        sql = """
            SELECT COUNT(DISTINCT CASE WHEN kind = 'succeeded' THEN step END),
                COUNT(DISTINCT CASE WHEN kind = 'failed' THEN step END)
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
        # Many may be left within one millisecond.
        id = f"{at} {next(_order):012} {new_id()}"
        sealed = await self._seals.seal(body, *about_request(run_id, id))
        await self._database.write(Statement(sql, {"run_id": run_id, "id": id, "body": sealed}))

    async def asked(self, run_id: str) -> builtins.list[str]:
        """Takes the oldest requests for a run, in order. What does not open is nobody's, and goes too."""
        await self._seals.ready()
        waiting = f"""
            SELECT id, body FROM flow_requests WHERE run_id = :run_id ORDER BY id LIMIT {MOST_ASKED}
        """
        found = await self._database.read(waiting, run_id=run_id)
        if not found:
            return []
        opened: dict[str, str] = {}
        for id, body in found:
            try:
                opened[id] = await self._seals.unseal(body, *about_request(run_id, id))
            except VaultError as error:
                logger.error("a request for run %s is left out: %s", run_id, error)
        # Not before they are open: whoever fails at that leaves them for another time.
        sql = "DELETE FROM flow_requests WHERE run_id = :run_id AND id IN :ids RETURNING id"
        values = {"run_id": run_id, "ids": [id for id, _ in found]}
        (changed,) = await self._database.write(Statement(sql, values))
        taken = {row[0] for row in changed.rows}
        return [body for id, body in opened.items() if id in taken]

    # --- sealed ---

    async def _run(self, row: Values) -> FlowRunRow:
        values = dict(zip(_FIELDS, row, strict=True))
        for name in SEALED:
            if values[name] is not None:
                about = about_run(name, values["run_id"], values["owner"])
                values[name] = await self._seals.unseal(values[name], *about)
        return FlowRunRow(**values)

    async def _entries(self, run_id: str, rows: Sequence[Values]) -> builtins.list[Entry]:
        found = []
        for row in rows:
            entry = Entry(*row)
            body = await self._seals.unseal(entry.body, *about_entry(run_id, entry))
            found.append(entry._replace(body=body))
        return found


def _batches(found: Sequence[Values]) -> Iterator[builtins.list[str]]:
    """Runs that together have few lines, and others one by one."""
    batch: builtins.list[str] = []
    lines = 0
    for run_id, last in found:
        if batch and lines + last > MOST_FORGOTTEN:
            yield batch
            batch, lines = [], 0
        batch.append(run_id)
        lines += last
    if batch:
        yield batch


_ENTRY = ", ".join(Entry._fields)
_LAST = """(
    SELECT COALESCE(MAX(number), 0) FROM flow_journal WHERE flow_journal.run_id = flow_runs.run_id
)"""
_ASKING = """
    FROM flow_journal AS asked WHERE run_id = :run_id AND kind = 'approval' AND NOT EXISTS (
        SELECT 1 FROM flow_journal AS later
        WHERE later.run_id = asked.run_id AND later.subject = asked.subject AND later.number > asked.number
    )
"""
_STEPS = """(
    SELECT COUNT(*) FROM flow_journal WHERE flow_journal.run_id = flow_runs.run_id AND step IS NOT NULL
)"""
