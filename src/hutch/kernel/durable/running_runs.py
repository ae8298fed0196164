"""Stores which runs are in progress, so that runs of a killed process are recorded as `interrupted`.

A run is stored in the background, and only after about a second, so that short runs cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import ExecutionError, HutchError
from hutch.kernel.records import RunRecord, stored_record
from hutch.sandbox.process_lease import RENEW_SECONDS, is_alive, this_holder
from hutch.session.run import MAX_RECORDED_CALLS, Result, RunHandle
from hutch.tasks import TimeSlices
from hutch.text import now_rfc3339

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution
    from hutch.store.models import NewRun
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

OUTCOME = "interrupted"
REASON = "the process of the run died"
MIN_SECONDS = 1.0
"""Time after which a run in progress is stored."""
LOOK_SECONDS = 0.5
"""Interval at which a process checks for runs that have reached MIN_SECONDS."""
PAUSE_FACTOR = 20
"""The pause between two checks is at least this many times the duration of a check, so that many runs with
many calls do not load the process or the store.
"""


class RunningRuns:
    """Runs in progress of this process, and the runs of processes that have died."""

    def __init__(self, active: Mapping[str, tuple[Execution, RunHandle]], store: Store) -> None:
        """`active` maps ids to the runs in progress. The kernel changes this dict as runs begin and end."""
        self._active = active
        self._table = store.running_runs
        self._flush_records = store.write_behind.flush
        self._stored: dict[str, tuple[int, int]] = {}
        """Stored runs by id, with the numbers of begun and ended calls in their stored records."""
        self._renewed_at = 0.0
        self._task = asyncio.get_running_loop().create_task(self._keep_current())

    async def _keep_current(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._renew()
                await self._store()
            except HutchError as error:
                logger.warning("the runs in progress cannot be stored: %s", error)
            await asyncio.sleep(max(LOOK_SECONDS, PAUSE_FACTOR * (time.monotonic() - began)))

    async def _renew(self) -> None:
        """Reports periodically that this process is alive, and records the runs of dead processes."""
        if time.monotonic() - self._renewed_at < RENEW_SECONDS:
            return
        self._renewed_at = time.monotonic()
        if self._stored:
            await self._table.renew(this_holder())
        for holder, seen_at in (await self._table.holders()).items():
            if not is_alive(holder, seen_at):
                for run_id in await self._table.interrupt(holder, seen_at):
                    logger.warning("the run %s was interrupted: its process has died", run_id)

    async def _store(self) -> None:
        stored, changed, slices = {}, [], TimeSlices()
        for run_id, (execution, run) in list(self._active.items()):
            if run.clock.now() < MIN_SECONDS or execution.is_internal:
                continue
            calls = run.call_count, len(run.calls)
            if self._stored.get(run_id) != calls:
                stored[run_id] = calls
                changed.append(interrupted_record(execution, run))
                await slices.pause()
        if changed:
            await self._table.put(this_holder(), changed)
            self._stored |= stored
        if ended := [run_id for run_id in self._stored if run_id not in self._active]:
            # Write the records of the ended runs before the runs are removed. If the process dies before the
            # records are written, the runs count as interrupted.
            await self._flush_records()
            await self._table.remove(this_holder(), ended)
            for run_id in ended:
                del self._stored[run_id]

    async def close(self) -> None:
        """Removes the runs of this process from the store, because all of them have ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._stored:
            try:
                await self._flush_records()
                await self._table.remove(this_holder(), [*self._stored])
            except HutchError as error:
                logger.warning("the runs in progress cannot be removed: %s", error)


def interrupted_record(execution: Execution, run: RunHandle) -> NewRun:
    """Returns the record of a run in progress, to be used if its process dies."""
    return unfinished_record(execution, run, ExecutionError(OUTCOME, REASON))


def unfinished_record(execution: Execution, run: RunHandle, error: ExecutionError) -> NewRun:
    """Returns the record of a run in progress, with the code of `error` as its outcome."""
    record = RunRecord.of(execution, run, Result(ok=False, error=error))
    running = [] if run.session is None else run.session.tool_calls.running()
    calls = [*run.calls, *running][:MAX_RECORDED_CALLS]
    return stored_record(
        msgspec.structs.replace(
            record,
            outcome=error.code,
            reason=error.message,
            ended_at=now_rfc3339(),
            duration_ms=run.clock.since_start_ms(),
            calls=calls,
            calls_left_out=max(0, run.call_count - len(calls)),
        )
    )
