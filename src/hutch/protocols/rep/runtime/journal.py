"""Stores the progress of runs, so that they can be resumed after a crash.

All entries that are added during a write go into the next transaction. Steps that end at the same time
therefore share one disk sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import HutchError, InvalidText, StoreError
from hutch.kernel.content import MAX_LISTED_MESSAGE_CHARS, RecordLevels
from hutch.protocols.rep.jsonrpc import INVALID_IR
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.models import RunSummary, StepResult
from hutch.protocols.rep.runtime.preflight import NotRunnable
from hutch.protocols.rep.runtime.run import OpenedJournal
from hutch.session.json_value import encode_value
from hutch.store.backends.base import replace_unstorable
from hutch.store.models import FlowRunHead, FlowRunRow, RunRow, now
from hutch.store.tables.journal import RECORD_KIND, JournalEntry
from hutch.telemetry.trace_context import current
from hutch.text import cut, now_rfc3339

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

PROTOCOL = "rep"
ENGINE_NAME = "hutch"

LOCAL_OWNER = "local"
"""Owner of runs without a user."""
OPERATOR_OWNERS = {LOCAL_OWNER, "key"}
"""Owner names of the operator. A server that requires a key uses `key`."""
WRITE_DELAY_SECONDS = 0.1
"""Time for which events are collected before they are written."""
REQUEST_POLL_SECONDS = 0.5
"""Interval for reading the requests of other processes."""
MAX_LOG_BYTES = 16 * 1024 * 1024
"""Limit for the log events of one run. Further log events are not stored."""
# Options that apply to one start only and are not stored with the run.
_TRANSIENT_OPTIONS = ("run_id", "journal", "resume", "origin")
_COUNT_FIELDS = ("completed_steps", "failed_steps", "skipped_steps", "total_steps")


class LeaseLost(HutchError):
    """Another process has taken over this run."""

    code = "conflict"


class StoreJournals:
    """Opens and closes the journals of one runtime process. Belongs to the event loop of the runtime."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        """`settings` is called when the first journal is opened."""
        self._settings = settings
        self._opening = asyncio.Lock()
        self._store: Store | None = None
        self._journals: list[RunJournal] = []

    async def open(
        self,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        *,
        options: Mapping[str, Any],
        on_request: Callable[[Mapping[str, Any]], None],
    ) -> OpenedJournal:
        """Opens the journal of a new run, or of an unfinished run to resume it.

        A run that has ended is not resumed, unless it failed and `options.resume` is true. Raises NotRunnable
        if the stored run has another owner, flow or inputs, or if another process executes it.
        """
        try:
            store = await self._open_store()
        except StoreError as error:
            if options.get("resume") is True or _can_have_store(self._settings()):
                raise
            logger.warning("this run is not stored and cannot be resumed: %s", error)
            return OpenedJournal(None)
        row = await self._row(store, run_id, flow, inputs, options)
        try:
            added = await store.journal.add(row)
        except InvalidText as error:
            raise _not_runnable("run_id", error.message) from None
        if added:
            return OpenedJournal(self._journal(store, row, on_request))
        stored = await store.journal.get(run_id)
        if stored is None or not _is_same_run(stored, row):
            raise _not_runnable("run_id", f"run {run_id!r} already exists with another flow or other inputs")
        if stored.is_over and not (stored.status == "failed" and options.get("resume") is True):
            summary = msgspec.convert(_from_json(stored.summary or ""), RunSummary)
            return OpenedJournal(None, summary=summary)
        claimed = None
        if not lease.is_held(stored):
            claimed = await store.journal.claim(stored, lease.this_holder(), now())
        if claimed is None:
            raise _not_runnable("run_id", f"the run {run_id!r} is running in another process", held=True)
        try:
            return await self._resume(store, claimed, on_request)
        except HutchError:
            # Release the lease. This process cannot read the run, but another process may be able to read it.
            with contextlib.suppress(HutchError):
                await store.journal.release(run_id, claimed.holder)
            raise

    async def _resume(
        self, store: Store, run: FlowRunRow, on_request: Callable[[Mapping[str, Any]], None]
    ) -> OpenedJournal:
        steps = await store.journal.steps(run.run_id)
        finished_steps = {step: msgspec.convert(_from_json(body), StepResult) for step, body in steps}
        last = await store.journal.last_number(run.run_id)
        asking = await store.journal.steps_awaiting_approval(run.run_id)
        return OpenedJournal(self._journal(store, run, on_request, last=last, asking=asking), finished_steps)

    async def close(self) -> None:
        """Releases the leases of unfinished runs, so that other processes can resume them."""
        for journal in self._journals:
            await journal.close()
        if self._store is not None:
            await self._store.close()

    async def _open_store(self) -> Store:
        async with self._opening:
            if self._store is None:
                from hutch.vault import flow_keys

                self._store = await flow_keys.open_store(self._settings())
            return self._store

    async def _row(
        self,
        store: Store,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> FlowRunRow:
        owner = LOCAL_OWNER
        if (name := options.get("user")) is not None:
            user = await store.users.by_name(name)
            if user is None:
                raise _not_runnable("user", f"there is no user {name!r}")
            owner = user.id
        at = now()
        stored_options = {key: value for key, value in options.items() if key not in _TRANSIENT_OPTIONS}
        return FlowRunRow(
            run_id=run_id,
            owner=owner,
            flow=flow.name,
            origin=str(options.get("origin", "cli")),
            status="running",
            created_at=at,
            started_at=at,
            holder=lease.this_holder(),
            seen_at=at,
            claims=1,
            document=to_json(flow.document),
            inputs=to_json(inputs),
            options=to_json(stored_options),
        )

    def _journal(
        self,
        store: Store,
        run: FlowRunRow,
        on_request: Callable[[Mapping[str, Any]], None],
        *,
        last: int = 0,
        asking: Iterable[str] = (),
    ) -> RunJournal:
        journal = RunJournal(store, run, on_request, self._settings(), last=last, asking=asking)
        journal.start()
        self._journals = [*(other for other in self._journals if not other.is_over), journal]
        return journal


class RunJournal:
    """Journal of one run. It is used while this process holds the lease of the run."""

    def __init__(
        self,
        store: Store,
        run: FlowRunRow,
        on_request: Callable[[Mapping[str, Any]], None],
        settings: Settings,
        *,
        last: int,
        asking: Iterable[str],
    ) -> None:
        """`last` is the highest entry number so far. `asking` are the steps that wait for an approval."""
        self._journal = store.journal
        self._steps_asking = {*asking}
        self._run = run
        self._settings = settings
        self._on_request = on_request
        self._number = last
        self._pending: list[JournalEntry] = []
        self._write_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._log_bytes = 0
        self.is_over = False
        self._poll_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._poll_task = asyncio.create_task(self._poll_store())

    async def step_finished(
        self, run_id: str, step_id: str, result: StepResult, record: Mapping[str, Any]
    ) -> None:
        self._add(to_json(msgspec.structs.asdict(result)), result.state, step=step_id)
        event = {"type": RECORD_KIND, "timestamp": now_rfc3339(), **record}
        self._add(to_json(event), RECORD_KIND, subject=self._subject("step", step_id))
        await self._flush()

    def add_event(self, run_id: str, event: Mapping[str, Any]) -> None:
        body = to_json(event)
        if event["type"] == "log":
            if self._log_bytes > MAX_LOG_BYTES:
                return
            self._log_bytes += len(body)
            if self._log_bytes > MAX_LOG_BYTES:
                note = {"level": "warning", "message": "further logs are not stored: there are too many"}
                body = to_json({**event, **note})
        # Replace characters that the database cannot store. Extension kinds choose their own event types,
        # which may contain any characters.
        kind = replace_unstorable(event["type"])
        if kind == RECORD_KIND:
            kind = "event"
        self._add(body, kind, subject=self._subject(kind, event.get("step_id")))
        if self._write_task is None:
            self._write_later()

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_DELAY_SECONDS, self._start_writing)

    def _subject(self, kind: str, step_id: str | None) -> str | None:
        """Returns the step id if the event starts or ends the step's wait for an approval, otherwise None."""
        if step_id is None:
            return None
        if kind == "approval":
            self._steps_asking.add(step_id)
            return step_id
        if kind in ("step", "approved") and step_id in self._steps_asking:
            self._steps_asking.discard(step_id)
            return step_id
        return None

    async def run_finished(self, run_id: str, summary: RunSummary) -> None:
        try:
            await self._flush()
            at = now()
            text = to_json(summary.wire)
            trace = current.get()
            record = run_record(
                self._run,
                summary,
                at,
                self._settings,
                key=_from_json(self._run.options).get("key"),
                trace_id=None if trace is None else trace.trace_id,
            )
            if not await self._journal.finish(self._run, record, text, at):
                raise LeaseLost()
        finally:
            self._stop()

    async def close(self) -> None:
        """Releases the lease if the run has not ended."""
        if self.is_over:
            return
        self._stop()
        try:
            await self._flush()
            await self._journal.release(self._run.run_id, self._run.holder)
        except HutchError as error:
            logger.warning("the lease of run %s could not be released: %s", self._run.run_id, error)

    def _stop(self) -> None:
        self.is_over = True
        if self._poll_task is not None:
            self._poll_task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    # --- writing ---

    def _add(self, body: str, kind: str, *, step: str | None = None, subject: str | None = None) -> None:
        self._number += 1
        self._pending.append(JournalEntry(self._number, body, step, kind, subject))

    async def _flush(self) -> None:
        """Waits until all added entries are durable. Raises HutchError."""
        while self._pending or self._write_task is not None:
            # Repeat, because the current write may have started before the last entry was added. Use a
            # shield, because other callers may wait for the same write.
            await asyncio.shield(self._start_writing())

    def _start_writing(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._write_task is None:
            self._write_task = asyncio.create_task(self._write())
            self._write_task.add_done_callback(_log_write_error)
        return self._write_task

    async def _write(self) -> None:
        entries, self._pending = self._pending, []
        try:
            if not await self._journal.write(self._run.run_id, self._run.holder, entries):
                raise LeaseLost()
        except BaseException:
            # Keep the entries, because later entries depend on them.
            self._pending = entries + self._pending
            raise
        finally:
            self._write_task = None
        if self._pending and not self.is_over:
            # Write again later, because events were added during the write.
            self._write_later()

    # --- other processes ---

    async def _poll_store(self) -> None:
        """Renews the lease and handles the requests of other processes."""
        run_id, holder = self._run.run_id, self._run.holder
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + lease.RENEW_SECONDS
        while True:
            await asyncio.sleep(REQUEST_POLL_SECONDS)
            try:
                for body in await self._journal.take_requests(run_id):
                    self._on_request(_from_json(body))
                if loop.time() >= renew_at:
                    renew_at = loop.time() + lease.RENEW_SECONDS
                    if not await self._journal.heartbeat(run_id, holder, now()):
                        logger.error("another process has taken over run %s", run_id)
                        self._on_request({"type": "cancel"})
                        return
            except HutchError as error:
                logger.warning("run %s: the store does not answer: %s", run_id, error)


def _can_have_store(settings: Settings) -> bool:
    """Returns True if a database is configured or HUTCH_HOME is writable."""
    if settings.database_url is not None:
        return True
    try:
        settings.home_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(settings.home_path, os.W_OK)


def _log_write_error(task: asyncio.Task[None]) -> None:
    """Logs the error of a background write. The write of the next step result raises the error again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a journal could not be written: %s", error)


# Create the encoder once, because `json.dumps` with these arguments would create one for each call.
_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """Encodes a value as ASCII JSON, which can contain any text. Accepts any depth that steps produce."""
    try:
        return _encoder.encode(value)
    except TypeError:
        # Encode the output with `encode_value`, because it may contain objects that only this function can
        # convert.
        return encode_value(value).decode()


def _from_json(text: str) -> Any:
    return json.loads(text)


def _is_same_run(stored: FlowRunRow, row: FlowRunRow) -> bool:
    same_flow = _from_json(stored.document) == _from_json(row.document)
    same_inputs = _from_json(stored.inputs) == _from_json(row.inputs)
    same_owner = stored.owner == row.owner or {stored.owner, row.owner} == OPERATOR_OWNERS
    return same_flow and same_inputs and same_owner


def _not_runnable(option: str, message: str, **details: Any) -> NotRunnable:
    problem = {"path": f"options.{option}", "message": message}
    return NotRunnable(
        INVALID_IR, f"options.{option}: {message}.", details={"problems": [problem], **details}
    )


# --- run records ---


def run_record(
    run: FlowRunHead,
    summary: RunSummary,
    at: str,
    settings: Settings,
    *,
    key: str | None,
    trace_id: str | None,
) -> RunRow:
    """Builds the record of a finished run, without inputs and outputs. The setting `record` determines
    whether the record contains the error message. `key` is the id of the API key that started the run.
    """
    levels = RecordLevels(settings.record, settings.record_protocols, by_key=settings.record_keys)
    level = levels.of(PROTOCOL, key=key)
    message = None if summary.error is None or level == "metadata" else _failure_message(summary.error)
    details: dict[str, Any] = {name: getattr(summary, name) for name in _COUNT_FIELDS}
    details |= {"version": run.version, "started_at": run.started_at, "ended_at": at}
    if trace_id is not None:
        details["trace_id"] = trace_id
    started_at = run.started_at or run.created_at
    return RunRow(
        run_id=run.run_id,
        owner=run.owner,
        protocol=PROTOCOL,
        engine=ENGINE_NAME,
        label=run.flow,
        created_at=run.created_at,
        duration_ms=max(0.0, _epoch_seconds(at) - _epoch_seconds(started_at)) * 1000,
        outcome=summary.outcome,
        details=msgspec.json.encode(details).decode(),
        recorded=level,
        error_message=message,
    )


def _failure_message(error: dict[str, Any]) -> str:
    data = error.get("data")
    step = data.get("step_id") if isinstance(data, dict) else None
    return cut(f"{f'{step}: ' if step else ''}{error['message']}", MAX_LISTED_MESSAGE_CHARS)


def _epoch_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
