"""Starts the runs of schedules. Each tick starts one run, even if several servers see the tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import Busy, HutchError, InvalidInput, StoreError
from hutch.queue.models import Accepted, KeyInUse, QueueCaller, RunOptions, RunRequest
from hutch.queue.polling import POLL_SECONDS, poll
from hutch.queue.schedules.cron import next_tick, ticks
from hutch.queue.targets import Forbidden, StartOptions, caller_of, target_request

if TYPE_CHECKING:
    from hutch.store.store import Store
    from hutch.store.tables.queue.schedules import Schedule

logger = logging.getLogger("hutch.schedules")

MISSED_MS = 60_000
"""A tick counts as missed if it is older than this when a server sees it."""
MAX_MISSED = 1_000
"""Maximum number of missed ticks that the policy `all` starts at once. Further missed ticks are started
afterwards.
"""

Submit = Callable[[RunRequest, QueueCaller, RunOptions, str], Awaitable[Accepted]]


class Ticker:
    def __init__(self, store: Store, submit: Submit) -> None:
        self._store = store
        self._submit = submit
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            poll(self._start_due, self._wake, "schedules cannot be started"), name="hutch schedules"
        )

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _start_due(self) -> float:
        """Starts the runs of ticks that are due. Returns the seconds until the next check."""
        next_in = await self._store.schedules.next_in()
        if next_in is not None and next_in <= 0:
            return 0.0 if await self.run_due() else POLL_SECONDS
        return POLL_SECONDS if next_in is None else min(POLL_SECONDS, next_in / 1000)

    async def run_due(self) -> bool:
        """Starts the runs of all ticks that are due. Returns False if some ticks have to wait. A schedule
        that cannot be started does not delay the schedules of other owners.
        """
        now = await self._store.queued_runs.now()
        all_started = True
        full: set[str] = set()
        for row in await self._store.schedules.due():
            if row.owner in full:
                continue
            try:
                await self._run_schedule(row, now)
            except (InvalidInput, Forbidden) as error:
                # The target does not exist any more, or needs another scope. Try again at the next tick.
                self._log(row, error)
                await self._store.schedules.advance(row, next_tick(row.cron, row.timezone, now), None)
            except StoreError:
                raise
            except HutchError as error:
                self._log(row, error)
                all_started = False
                if isinstance(error, Busy):
                    full.add(row.owner)
        return all_started

    def _log(self, row: Schedule, error: HutchError) -> None:
        logger.error("the schedule %s of %s cannot be started: %s", row.name, row.owner, error)

    async def _run_schedule(self, row: Schedule, now: int) -> None:
        due, next_at = due_ticks(row, now)
        run_id = None
        if due:
            options = msgspec.json.decode(await self._store.schedules.options(row.id), type=StartOptions)
            request = await target_request(
                self._store, caller_of(row), row.target_kind, row.target, options.inputs
            )
            for tick in due:
                # All servers use the same idempotency key for a tick. So a tick that two servers start
                # becomes only one run.
                run_options = options.run_options(f"schedule {row.id} {tick}")
                try:
                    source = f"schedule {row.name}"
                    run_id = (await self._submit(request, caller_of(row), run_options, source)).run_id
                except KeyInUse:
                    pass  # the schedule was changed meanwhile, and another server has started this tick
        await self._store.schedules.advance(row, next_at, run_id)


def due_ticks(row: Schedule, now: int) -> tuple[list[int], int]:
    """Returns the ticks to start now, according to the schedule's policy for missed ticks, and the next tick
    after them.
    """
    recent_from = now - MISSED_MS
    is_missed = row.next_at < recent_from
    if is_missed and row.missed == "all":
        found = [row.next_at, *islice(ticks(row.cron, row.timezone, row.next_at), MAX_MISSED)]
        due = [tick for tick in found if tick <= now]
    else:
        due = [row.next_at]
        first = row.next_at
        if is_missed:
            due = [row.next_at] if row.missed == "once" else []
            first = recent_from
        for tick in ticks(row.cron, row.timezone, first):
            if tick > now:
                break
            due.append(tick)
    last = max(due[-1] if due else 0, now if not (is_missed and row.missed == "all") else 0)
    return due, next_tick(row.cron, row.timezone, last)
