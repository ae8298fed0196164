"""Lists and finds runs of all protocols: runs in progress, and records of ended runs."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import msgspec

from hutch.errors import StoreError
from hutch.kernel.execution import Execution
from hutch.protocols.runs.filters import RunListQuery, encode_cursor, matches
from hutch.protocols.runs.queued import QueuedRun, queue_fields
from hutch.protocols.runs.responses import ActiveRun, ended_detail, ended_entry
from hutch.session.json_value import decode_value
from hutch.session.run import SUSPENDED, RunHandle
from hutch.store.models import FlowRunHead, RunRow
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import QueuedRunRow
from hutch.store.tables.run_search import ALL_ENDED, Match, SortKey
from hutch.tasks import TimeSlices

NAME_SECONDS = 60.0
"""Time for which the names of users are cached."""
MAX_CACHED_NAMES = 10_000

FlowState = Callable[[FlowRunHead, Sequence[str]], str]
"""Returns the state of a flow run that has not ended: `pending`, `running`, `waiting` or `interrupted`. The
second argument has the steps that wait for an approval.
"""
ActiveRuns = Callable[[], Mapping[str, tuple[Execution, RunHandle]]]


class Visibility(msgspec.Struct, frozen=True):
    """Restricts the runs that a caller may see. A field that is None restricts nothing."""

    owner: str | None = None
    protocols: tuple[str, ...] | None = None

    def allows(self, owner: str, protocol: str) -> bool:
        return (self.owner is None or owner == self.owner) and (
            self.protocols is None or protocol in self.protocols
        )


class OpenFlow:
    """List entry of a flow run that has not ended."""

    tools: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def __init__(
        self, head: FlowRunHead, flow_state: FlowState | None, waiting_for: Sequence[str] = ()
    ) -> None:
        row = flow_row(head)
        status = "pending" if head.status == "pending" else "running"
        times = {"started_at": head.started_at, "ended_at": head.ended_at}
        self.entry: dict[str, Any] = {
            **ended_entry(row, {"completed_steps": 0, "version": head.version, **times}),
            "outcome": head.outcome,
            "error": None,
            "duration_ms": None,
            "recorded": None,
            "status": status,
        }
        self.entry["state"] = status if flow_state is None else flow_state(head, waiting_for)
        self.entry["waiting_for"] = [*waiting_for]


def flow_row(head: FlowRunHead) -> RunRow:
    return RunRow(
        run_id=head.run_id,
        owner=head.owner,
        protocol="rep",
        engine="hutch",
        label=head.flow,
        created_at=head.created_at,
        duration_ms=0.0,
        outcome=head.outcome or "ok",
    )


class RunCatalog:
    """Lists and finds runs. Ended runs, queued runs and flow runs come from the store. Other runs in progress
    are included only if this process executes them.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        active: ActiveRuns = dict,
        flow_state: FlowState | None = None,
    ) -> None:
        self.store = store
        self.active = active
        self._flow_state = flow_state
        self._names: dict[str, tuple[float, str | None]] = {}

    async def list(self, query: RunListQuery, visible: Visibility) -> dict[str, Any]:
        """Returns a page of runs. Raises StoreError."""
        store = await self.store()
        # Write pending records first, because runs that have just ended are neither in progress nor stored
        # yet. If writing them fails, the search reports the error.
        with contextlib.suppress(StoreError):
            await store.write_behind.flush()
        query = await self._resolve(query, visible)
        search = query.search
        live = await self._live(store, query, visible)
        entries, boundary, is_partial = await self._ended(store, query)
        page, next_key = _merge(live, entries, boundary, search.limit, descending=search.descending)
        for entry in page:
            entry["owner_name"] = await self._owner_name(store, entry["owner"])
        body: dict[str, Any] = {"runs": page, "is_partial": is_partial}
        if next_key is not None:
            body["next"] = encode_cursor(next_key)
            if search.sort == "created":
                body["searched_to"] = next_key[0]
        if query.with_counts:
            body |= await self._counts(store, query, visible)
        return body

    async def _ended(
        self, store: Store, query: RunListQuery
    ) -> tuple[Sequence[tuple[SortKey, dict[str, Any]]], SortKey | None, bool]:
        if not query.includes_ended:
            return [], None, False
        page = await store.runs.search(query.search)
        sort = query.search.sort
        entries, slices = [], TimeSlices()
        for row in page.runs:
            # Let other tasks run, because decoding the details of a run with many calls (60 KB) takes time.
            await slices.pause()
            if row.outcome == "retrying":
                continue  # the list of queued runs contains this run
            entry = ended_entry(row, msgspec.json.decode(row.details))
            key = (row.created_at if sort == "created" else row.duration_ms), row.run_id
            entries.append((key, entry))
        return entries, page.next, page.is_partial

    async def _live(
        self, store: Store, query: RunListQuery, visible: Visibility
    ) -> Sequence[tuple[SortKey, dict[str, Any]]]:
        if not query.includes_open:
            return []
        runs: builtins.list[ActiveRun | OpenFlow | QueuedRun] = []
        slices = TimeSlices()
        active = self.active()
        for row in await store.queued_runs.list(("delayed", "queued", "running"), visible.owner):
            is_listed = row.run_id in active or (row.kind == "flow" and row.state == "running")
            if not is_listed and visible.allows(row.owner, row.protocol):
                await slices.pause()
                runs.append(QueuedRun(row))
        for execution, run in [*active.values()]:
            if not execution.is_internal and visible.allows(execution.owner, execution.protocol):
                await slices.pause()
                runs.append(ActiveRun(execution, run))
        flows = [head for head in await store.journal.open_runs() if visible.allows(head.owner, "rep")]
        waiting = await store.journal.waiting_steps([head.run_id for head in flows])
        runs += [OpenFlow(head, self._flow_state, waiting.get(head.run_id, ())) for head in flows]
        return [
            ((run.entry["created_at"], run.entry["run_id"]), run.entry) for run in runs if matches(run, query)
        ]

    async def _counts(self, store: Store, query: RunListQuery, visible: Visibility) -> dict[str, Any]:
        counted = await store.runs.count(query.search)
        everything = msgspec.structs.replace(
            query, statuses=frozenset({"pending", "running"}), search=_without_outcome(query.search)
        )
        statuses = [entry["status"] for _, entry in await self._live(store, everything, visible)]
        return {
            "counts": {
                "pending": statuses.count("pending"),
                "running": statuses.count("running"),
                "completed": counted.completed,
                "failed": counted.failed,
                "suspended": counted.suspended,
            },
            "counts_complete": counted.is_complete,
        }

    async def _resolve(self, query: RunListQuery, visible: Visibility) -> RunListQuery:
        """Replaces names of users by their ids, and restricts the query to runs that the caller may see."""
        search = query.search
        if visible.owner is not None:
            search = msgspec.structs.replace(search, owner=Match((visible.owner,)))
        elif search.owner:
            any_of = [await self._owner_id(owner) for owner in search.owner.any_of]
            none_of = [await self._owner_id(owner) for owner in search.owner.none_of]
            search = msgspec.structs.replace(search, owner=Match(tuple(any_of), tuple(none_of)))
        if visible.protocols is not None:
            asked = search.protocol.any_of or visible.protocols
            allowed = tuple(protocol for protocol in asked if protocol in visible.protocols)
            # If no protocol is allowed, search for an empty name, which no protocol has.
            protocol = Match(allowed or ("",), search.protocol.none_of)
            search = msgspec.structs.replace(search, protocol=protocol)
        return msgspec.structs.replace(query, search=search)

    async def _owner_id(self, owner: str) -> str:
        user = await (await self.store()).users.by_name(owner)
        return owner if user is None else user.id

    async def _owner_name(self, store: Store, owner: str) -> str | None:
        at, name = self._names.get(owner, (0.0, None))
        if at and monotonic() - at < NAME_SECONDS:
            return name
        user = await store.users.by_id(owner)
        if len(self._names) >= MAX_CACHED_NAMES:
            self._names.clear()
        self._names[owner] = monotonic(), None if user is None else user.name
        return self._names[owner][1]

    # --- one run ---

    async def find(self, run_id: str, visible: Visibility) -> FoundRun | None:
        """Finds a run in progress, a flow run or a record. Returns None if the caller may not see it."""
        active = self.active().get(run_id)
        if active is not None and visible.allows(active[0].owner, active[0].protocol):
            return FoundRun(active=active)
        store = await self.store()
        head = await store.journal.head(run_id)
        # Check the owner here, because another owner's flow run with this id must not hide a run of the
        # caller.
        if head is not None and visible.allows(head.owner, "rep"):
            return FoundRun(flow=head)
        queued = await store.queued_runs.get(run_id)
        if queued is not None and not visible.allows(queued.owner, queued.protocol):
            queued = None
        if queued is not None and queued.is_open:
            return FoundRun(queued=queued)
        row = await store.runs.get(run_id)
        if row is None or row.outcome in ("suspended", "retrying", "interrupted"):
            # Flush first, because the record of a run that has just ended, or was continued, may not be
            # written yet.
            with contextlib.suppress(StoreError):
                await store.write_behind.flush()
            row = await store.runs.get(run_id)
        if row is None and queued is not None:
            # The run ended before it started, so it has no record yet, or its server died before it wrote the
            # record.
            return FoundRun(queued=queued, has_ended_queue=True)
        if row is None or not visible.allows(row.owner, row.protocol):
            return None
        return FoundRun(row=row, has_ended_queue=queued is not None)

    async def detail(self, found: FoundRun) -> dict[str, Any]:
        """Returns all recorded data of an execution. Raises StoreError, VaultError."""
        store = await self.store()
        if found.active is not None:
            detail = ActiveRun(*found.active).detail()
        elif found.queued is not None:
            detail = {**QueuedRun(found.queued).detail, "queue": queue_fields(found.queued)}
        else:
            assert found.row is not None
            content = await self.content(found.row)
            detail = ended_detail(found.row, msgspec.json.decode(found.row.details), content)
            if found.row.outcome == SUSPENDED:
                calls = await store.checkpoints.calls(found.row.run_id)
                detail["pending_calls"] = msgspec.to_builtins(calls)
        return {**detail, "owner_name": await self._owner_name(store, detail["owner"])}

    async def content(self, row: RunRow) -> dict[str, Any]:
        text = await (await self.store()).runs.content(row.run_id)
        return {} if text is None else decode_value(text.encode())

    async def flow_fields(self, head: FlowRunHead) -> dict[str, Any]:
        """Returns the fields that flow runs have in common with executions."""
        store = await self.store()
        row = await store.runs.get(head.run_id) if head.is_over else None
        details: dict[str, Any] = {}
        if row is None:
            waiting = await store.journal.waiting_steps([head.run_id])
            entry = OpenFlow(head, self._flow_state, waiting.get(head.run_id, ())).entry
        else:
            details = msgspec.json.decode(row.details)
            entry = ended_entry(row, details)
        name = await self._owner_name(store, head.owner)
        return {**entry, "trace_id": details.get("trace_id"), "owner_name": name}


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was found. Exactly one of the first four fields is set: the run is in progress on this
    server, is a flow run, is queued or runs on another server, or has a record.
    """

    active: tuple[Execution, RunHandle] | None = None
    flow: FlowRunHead | None = None
    queued: QueuedRunRow | None = None
    row: RunRow | None = None
    has_ended_queue: bool = False
    """True if the run was asynchronous, so that its result may be stored."""


def _without_outcome(search: Any) -> Any:
    return msgspec.structs.replace(search, outcome=Match(), ended=ALL_ENDED)


def _merge(
    live: Sequence[tuple[SortKey, dict[str, Any]]],
    ended: Sequence[tuple[SortKey, dict[str, Any]]],
    boundary: SortKey | None,
    limit: int,
    *,
    descending: bool,
) -> tuple[list[dict[str, Any]], SortKey | None]:
    """Merges runs in progress with a page of ended runs. Returns the entries, and the sort key after which
    the next page starts.

    `boundary` is the sort key at which the page of ended runs stops, or None if that page is the last one.
    Runs in progress after the boundary belong to a later page.
    """

    def is_known(key: SortKey) -> bool:
        if boundary is None:
            return True
        return key >= boundary if descending else key <= boundary

    ended_ids = {entry["run_id"] for _, entry in ended}
    merged = [(key, entry) for key, entry in live if is_known(key) and entry["run_id"] not in ended_ids]
    merged = sorted([*merged, *ended], key=lambda item: item[0], reverse=descending)
    page = merged[:limit]
    if len(merged) > limit:
        return [entry for _, entry in page], page[-1][0]
    return [entry for _, entry in page], boundary
