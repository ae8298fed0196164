"""Stores which runs are in progress, so that those of a killed process get a record as `interrupted`.

A run is stored only when it has taken about a second, in the background. Short runs cost nothing.
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
"""Interval at which a process looks for such runs."""
PAUSE_FACTOR = 20
"""The pause between two looks is at least this many times the duration of a look, so that many runs with many
calls do not load the process or the store.
"""


class RunningRuns:
    """Runs in progress of this process, and the runs of processes that have died."""

    def __init__(self, active: Mapping[str, tuple[Execution, RunHandle]], store: Store) -> None:
        """`active` are the runs in progress by id, which change meanwhile."""
        self._active = active
        self._table = store.running_runs
        self._flush_records = store.write_behind.flush
        self._stored: dict[str, tuple[int, int]] = {}
        """Stored runs by id, with the numbers of calls that the stored records have: begun and ended."""
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
        """Reports that this process is alive, and records the runs of dead processes; now and then."""
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
            # If the process dies before the records of these runs are written, they count as interrupted.
            await self._flush_records()
            await self._table.remove(this_holder(), ended)
            for run_id in ended:
                del self._stored[run_id]

    async def close(self) -> None:
        """Removes the runs of this process. They have ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._stored:
            try:
                await self._flush_records()
                await self._table.remove(this_holder(), [*self._stored])
            except HutchError as error:
                logger.warning("the runs in progress cannot be removed: %s", error)


def interrupted_record(execution: Execution, run: RunHandle) -> NewRun:
    """Returns the record that a run in progress gets if its process dies now."""
    record = RunRecord.of(execution, run, Result(ok=False, error=ExecutionError(OUTCOME, REASON)))
    running = [] if run.session is None else run.session.tool_calls.running()
    calls = [*run.calls, *running][:MAX_RECORDED_CALLS]
    return stored_record(
        msgspec.structs.replace(
            record,
            outcome=OUTCOME,
            reason=REASON,
            ended_at=now_rfc3339(),
            duration_ms=run.clock.since_start_ms(),
            calls=calls,
            calls_left_out=max(0, run.call_count - len(calls)),
        )
    )
