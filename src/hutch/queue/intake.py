"""Accepts asynchronous runs. Runs that arrive at about the same time are committed together."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import Busy, InvalidText, UnstorableValue
from hutch.queue.models import Accepted, KeyInUse, QueueCaller, RunOptions, RunRequest
from hutch.session.run import new_run_id
from hutch.store.tables.queue.queued_runs import NewQueuedRun, QueuedRunRow

if TYPE_CHECKING:
    from hutch.store.store import Store

MAX_BATCH = 500
MAX_WRITERS = 2
"""Maximum number of concurrent commits. With two, a commit is prepared while another waits for the disk."""
SOON_MS = 1_000
"""The dispatcher is woken up only for runs that are due within this time. It finds later runs by polling."""
MAX_COUNTED = 10_000
COUNT_SECONDS = 1.0
"""Time for which the number of an owner's waiting runs is cached."""


class _Pending:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.done: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()


class Intake:
    def __init__(self, max_queued_per_owner: int, on_added: Callable[[], None]) -> None:
        """`on_added` is called after each commit of runs that are due soon."""
        self._max_queued = max_queued_per_owner
        self._on_added = on_added
        self._pending: list[_Pending] = []
        self._writing: set[asyncio.Task[None]] = set()
        self._counts: dict[str, tuple[float, int]] = {}

    async def add(
        self,
        store: Store,
        request: RunRequest,
        caller: QueueCaller,
        options: RunOptions,
        source: str | None = None,
    ) -> Accepted:
        """Adds a run. The run is committed when this method returns. Raises KeyInUse, Busy and StoreError."""
        await self._check_count(store, caller.owner)
        pending = _Pending(await store.queued_runs.encrypt(new_run(request, caller, options, source)))
        self._pending.append(pending)
        if len(self._writing) < MAX_WRITERS:
            task = asyncio.get_running_loop().create_task(self._write(store))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        # Shield the result, because the batch contains runs of other callers, and is written even if this
        # caller is cancelled.
        return await asyncio.shield(pending.done)

    async def _check_count(self, store: Store, owner: str) -> None:
        now = time.monotonic()
        counted_at, count = self._counts.get(owner, (0.0, 0))
        if now - counted_at > COUNT_SECONDS:
            if len(self._counts) > MAX_COUNTED:
                self._counts.clear()
            # Store the old count with the new time, so that concurrent requests use the old count instead of
            # counting too.
            self._counts[owner] = now, count
            count = await store.queued_runs.count_open(owner, self._max_queued)
            counted_at = now
        self._counts[owner] = counted_at, count + 1
        if count >= self._max_queued:
            raise Busy(
                f"{self._max_queued} asynchronous runs of this owner wait already"
                " (setting max_queued_runs_per_owner).",
                retry_after=5,
            )

    async def _write(self, store: Store) -> None:
        # Wait one iteration of the event loop, so that requests that have arrived together form one batch.
        await asyncio.sleep(0)
        while self._pending:
            batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
            try:
                await self._write_batch(store, batch)
            except Exception as error:
                for pending in batch:
                    if not pending.done.done():
                        pending.done.set_exception(error)
                        # Read the exception, because asyncio logs an error for an exception that is never
                        # read. The request does not read it if it was cancelled.
                        pending.done.exception()
            else:
                if any(pending.values["delay_ms"] < SOON_MS for pending in batch):
                    self._on_added()

    async def _write_batch(self, store: Store, batch: list[_Pending]) -> None:
        try:
            await store.queued_runs.add([pending.values for pending in batch])
        except (UnstorableValue, InvalidText):
            if len(batch) == 1:
                raise
            # One of the runs cannot be stored, so write each run in its own transaction.
            for pending in batch:
                try:
                    await self._write_batch(store, [pending])
                except (UnstorableValue, InvalidText) as error:
                    pending.done.set_exception(error)
                    pending.done.exception()
            return
        keyed = [p for p in batch if p.values["idempotency_key"] is not None]
        pairs = [(p.values["owner"], p.values["idempotency_key"]) for p in keyed]
        found = await store.queued_runs.with_keys(pairs) if keyed else {}
        for pending in batch:
            _finish(pending, found)


def _finish(pending: _Pending, found: dict[tuple[str, str], tuple[str, str]]) -> None:
    values = pending.values
    run_id, digest = found.get((values["owner"], values["idempotency_key"]), (values["run_id"], None))
    if pending.done.done():
        return
    if digest is not None and digest != values["digest"]:
        pending.done.set_exception(KeyInUse())
        pending.done.exception()
    else:
        pending.done.set_result(Accepted(run_id, run_id == values["run_id"]))


def new_run(
    request: RunRequest, caller: QueueCaller, options: RunOptions, source: str | None = None
) -> NewQueuedRun:
    """Returns a run with a new id."""
    row = QueuedRunRow(
        run_id=new_run_id(),
        owner=caller.owner,
        key_id=caller.key_id,
        scopes=None if caller.scopes is None else msgspec.json.encode(list(caller.scopes)).decode(),
        kind=request.kind,
        protocol=request.protocol,
        label=request.label,
        source=source,
        priority=options.priority,
        max_attempts=options.attempts,
        idempotency_key=options.idempotency_key,
        digest=_digest(request, options),
    )
    return NewQueuedRun(
        row=row,
        request=request.body,
        webhook=None if options.webhook is None else msgspec.json.encode(options.webhook),
        delay_ms=options.delay_ms,
        deadline_ms=options.deadline_ms,
    )


def _digest(request: RunRequest, options: RunOptions) -> str:
    if options.idempotency_key is None:
        return ""
    parts = request.kind.encode(), request.body, msgspec.json.encode(options)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
