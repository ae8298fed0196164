"""Writes run records, the use of API keys and the usage of owners in batches in the background, so that no
run waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from hutch.errors import HutchError, UnstorableValue
from hutch.store.backends.base import Database
from hutch.store.models import NewRun, RunRow, Usage
from hutch.store.tables.quotas import write_usage
from hutch.store.tables.runs import RunTable
from hutch.tasks import TimeSlices

logger = logging.getLogger("hutch.store")

BATCH_SECONDS = 0.25
"""Time to wait for more rows after the first one."""
RETRY_SECONDS = 5.0
MAX_BATCH = 1_000
MAX_QUEUED_RUNS = 50_000
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Maximum size of the queue while the database is unavailable. Beyond this, the oldest rows are dropped."""


class QueueState(NamedTuple):
    """State of the queue, for the health of the server."""

    waiting: int
    dropped: int
    """Number of records that were lost because the queue was full, since the database last worked."""
    failure: str | None
    """Reason why records cannot be written at the moment; None if they can."""
    total_dropped: int = 0
    """Number of records that were lost since the start."""


class _QueuedRun(NamedTuple):
    make: Callable[[], NewRun]
    size: int


class WriteBehindQueue:
    """Queue of run records and uses of API keys. They are written in the background and on close."""

    def __init__(
        self,
        database: Database,
        runs: RunTable,
        *,
        max_queued: int = MAX_QUEUED_RUNS,
        max_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._database = database
        self._table = runs
        self._runs: deque[_QueuedRun] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._failure: str | None = None
        self._key_uses: dict[str, str] = {}
        self._usages: dict[tuple[str, str], Usage] = {}
        self.usage_lock = asyncio.Lock()
        """Held while usage is written. A reader that holds it counts each usage once: as stored or as queued.
        """
        self.before_flush: Callable[[], Awaitable[None]] = _nothing
        """Awaited before each flush. Adds the records of runs that have just ended."""
        self._max_queued = max_queued
        self._dropped = self._total_dropped = 0
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task = asyncio.create_task(self._write_loop(), name="hutch store: write-behind")

    @property
    def state(self) -> QueueState:
        return QueueState(len(self._runs), self._dropped, self._failure, self._total_dropped)

    def add_run(self, run: NewRun | RunRow) -> None:
        """Queues a run record. Never waits and never fails."""
        new = NewRun(run) if isinstance(run, RunRow) else run
        self.add_run_later(lambda: new, new.size)

    def add_run_later(self, make: Callable[[], NewRun], size: int) -> None:
        """Queues a run record that `make` returns. `size` is an estimate of its bytes in memory.

        `make` is called when the record is written. Making the records of a batch one after the other takes
        a fraction of the CPU time of making each record at the end of its run, when the caches are cold.
        """
        self._runs.append(_QueuedRun(make, size))
        self._bytes += size
        while len(self._runs) > self._max_queued or (self._bytes > self._max_bytes and len(self._runs) > 1):
            self._pop()
            self._dropped += 1
            self._total_dropped += 1
        self._wake.set()

    def _pop(self) -> None:
        self._bytes -= self._runs.popleft().size

    def add_key_use(self, id: str, at: str) -> None:
        self._key_uses[id] = at
        self._wake.set()

    def add_usage(self, subject: str, day: str, usage: Usage) -> None:
        self._usages[subject, day] = self._usages.get((subject, day), Usage()) + usage
        self._wake.set()

    def unwritten_usage(self, subject: str, day: str) -> Usage:
        """Returns the usage that is queued."""
        return self._usages.get((subject, day), Usage())

    async def flush(self) -> None:
        """Writes all queued rows. If that fails, raises StoreError and keeps the rows in the queue."""
        await self.before_flush()
        async with self._writing:
            while self._runs:
                queued = [self._runs[number] for number in range(min(len(self._runs), MAX_BATCH))]
                await self._write_runs(await _made(queued))
                written = {id(run) for run in queued}
                # Remove only those rows of the batch that are still in the queue, because some may have been
                # dropped meanwhile.
                while self._runs and id(self._runs[0]) in written:
                    self._pop()
            if self._key_uses:
                uses, self._key_uses = self._key_uses, {}
                try:
                    await self._write_key_uses(uses)
                except BaseException:
                    self._key_uses = uses | self._key_uses
                    raise
            if self._usages:
                async with self.usage_lock:
                    await self._write_usages()

    async def _write_usages(self) -> None:
        usages, self._usages = self._usages, {}
        try:
            await write_usage(self._database, usages)
        except BaseException:
            for key, usage in usages.items():
                self._usages[key] = usage + self._usages.get(key, Usage())
            raise

    async def close(self) -> None:
        """Writes all queued rows. Logs how many rows are lost if they cannot be written."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            await self.flush()
        except HutchError as error:
            logger.error("%d run records could not be written: %s", len(self._runs) + self._dropped, error)

    async def _write_loop(self) -> None:
        failing = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(RETRY_SECONDS if failing else BATCH_SECONDS)
            try:
                await self.flush()
            except Exception as error:
                if not failing:
                    unexpected = None if isinstance(error, HutchError) else error
                    logger.error("run records cannot be written for now: %s", error, exc_info=unexpected)
                failing, self._failure = True, str(error)
                self._wake.set()
            else:
                if failing:
                    logger.warning("run records can be written again; %d were dropped", self._dropped)
                    self._dropped = 0
                failing, self._failure = False, None

    async def _write_runs(self, batch: list[NewRun]) -> None:
        """Writes records. A record that the database refuses is dropped, because it would be refused again
        and all later records would wait for it.
        """
        try:
            await self._table.add_new(batch)
        except UnstorableValue:
            for run in batch:
                try:
                    await self._table.add_new([run])
                except UnstorableValue as error:
                    logger.error("the record of run %r cannot be stored: %s", run.row.run_id[:100], error)

    async def _write_key_uses(self, uses: dict[str, str]) -> None:
        sql = """
            UPDATE api_keys SET last_used_at = :at
            WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :at)
        """
        # Update the keys in sorted order on every server, because transactions with different orders would
        # block each other.
        await self._database.write_many(sql, [{"id": id, "at": at} for id, at in sorted(uses.items())])


async def _nothing() -> None: ...


async def _made(queued: Sequence[_QueuedRun]) -> list[NewRun]:
    """Makes queued records. Leaves out those that cannot be made, because all later records would wait for
    them.
    """
    made, slices = [], TimeSlices()
    for run in queued:
        try:
            made.append(run.make())
        except Exception:
            logger.exception("the record of a run cannot be made")
        await slices.pause()
    return made
