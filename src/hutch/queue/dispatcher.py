"""Takes queued runs and executes them, up to the number of places of this server. Owners take turns.

Every run that this server executes has a lease, which a task renews.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from hutch.errors import Busy, HutchError, RateLimited, StoreError, VaultError
from hutch.http.errors import ApiError
from hutch.kernel.caller import caller_key
from hutch.owner_shares import OwnerShares, OwnerTurns
from hutch.queue.attempt import Attempt, LeaseLost
from hutch.queue.endings import Endings, failure
from hutch.queue.events.publisher import EventPublisher, OpenEvents
from hutch.queue.models import HandlerResult, QueueCaller, RunHandler, RunReleased
from hutch.queue.polling import POLL_SECONDS, poll

if TYPE_CHECKING:
    from hutch.store.store import Store
    from hutch.store.tables.queue.queued_runs import QueuedRunRow, TakenRun

logger = logging.getLogger("hutch.queue")

CHANNEL = "hutch_queue"
"""Notified when runs were queued."""
SIGNAL_CHANNEL = "hutch_running"
"""Notified when a running run was cancelled, or has a new follower at another server."""
RENEW_SECONDS = 2.0
"""Maximum interval at which leases are renewed and cancellations are noticed."""
MIN_RENEW_SECONDS = 0.1
MAX_LOST = 3
"""A run is not queued again after this many of its servers have died, because the run itself may kill them.
"""
MAX_PARKED = 1_000
"""Maximum number of runs without a place: they only wait, for example for approvals. If there are more, this
server takes no further runs.
"""
MIN_BUSY_DELAY_MS = 100
RECONNECT_SECONDS = 2.0

CheckCaller = Callable[[QueueCaller], Awaitable[None]]
"""Raises HutchError if the caller may no longer run anything."""


class Dispatcher:
    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, RunHandler],
        endings: Endings,
        check_caller: CheckCaller,
        *,
        places: int,
        lease_seconds: float,
        holder: str,
        open_events: OpenEvents = lambda follower: None,
    ) -> None:
        self._store = store
        self._table = store.queued_runs
        self._handlers = handlers
        self._endings = endings
        self._check_caller = check_caller
        self._places = places
        self._lease_ms = int(lease_seconds * 1000)
        self._holder = holder
        self._turns = OwnerTurns()
        self._shares = OwnerShares(places)
        self.attempts: dict[str, Attempt] = {}
        """Runs that this server executes, by id."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: set[str] = set()
        """Runs that only wait, and take no place."""
        self._background: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._signal = asyncio.Event()
        self._publisher = EventPublisher(store.followers, open_events)
        self.is_draining = False
        self._renewed_at = time.monotonic()

    @property
    def free_places(self) -> int:
        if self.is_draining or len(self._parked) >= MAX_PARKED:
            return 0
        return self._places - (len(self._tasks) - len(self._parked))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._background = [
            loop.create_task(work, name=f"hutch queue: {name}")
            for name, work in (
                ("take", poll(self._take_due, self._wake, "queued runs cannot be taken")),
                ("renew", self._keep_renewing()),
                ("listen", self._keep_listening()),
                ("events", self._publisher.run()),
            )
        ]

    def wake(self) -> None:
        """Makes the dispatcher look for queued runs now instead of at the next poll."""
        self._wake.set()

    def _on_signal(self) -> None:
        self._signal.set()
        self._publisher.wake()

    async def drain(self, seconds: float) -> None:
        """Takes no further runs, and waits for those that this server executes."""
        self.is_draining = True
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=seconds)

    async def close(self) -> None:
        """Stops executing runs. Queues runs again if they cannot have had effects; other runs end as
        interrupted.
        """
        self.is_draining = self._endings.is_closing = True
        for task in (*self._background, *self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._background, *self._tasks.values(), return_exceptions=True)
        await self._publisher.close()

    # --- taking runs ---

    async def _take_due(self) -> float:
        """Takes due runs, ends runs that are past their deadline, and recovers runs of dead servers. Returns
        the seconds until the next check.
        """
        pulse = await self._table.pulse()
        if pulse.has_late:
            for row in await self._table.past_deadline():
                message = "The run did not start before its deadline"
                await self._endings.end_waiting(row, "deadline_exceeded", message)
        if pulse.has_expired and not self.is_draining:
            for row in await self._table.expired_leases():
                await self._recover(row)
        is_due = pulse.due_in_ms is not None and pulse.due_in_ms <= 0
        if is_due:
            await self._table.promote()
        if pulse.has_queued or is_due or pulse.has_expired:
            await self._fill()
        if pulse.due_in_ms is None:
            return POLL_SECONDS
        return min(POLL_SECONDS, max(0.001, pulse.due_in_ms / 1000)) if not is_due else 0.001

    async def _fill(self) -> None:
        """Takes runs until all places are taken or nothing is queued."""
        while self.free_places > 0:
            counts = self._choose(await self._table.waiting_owners())
            taken = await self._table.take(counts, self._holder, self._lease_ms) if counts else []
            for run in taken:
                self._turns.take(run.row.owner)
                self._begin(run)
            if not taken:
                return

    def _choose(self, owners: list[str]) -> Counter[str]:
        """Returns how many runs of each owner to take. Owners take turns, and no owner gets all places."""
        counts: Counter[str] = Counter()
        last = {owner: self._turns.next(owner) for owner in owners}
        for _ in range(self.free_places):
            allowed = [
                owner for owner in owners if self._shares.may_take(owner, counts[owner], counts.total())
            ]
            if not allowed:
                break
            owner = min(allowed, key=last.__getitem__)
            counts[owner] += 1
            last[owner] += self._turns.length(owner)
        return +counts

    def _begin(self, run: TakenRun) -> None:
        handler = self._handlers.get(run.row.kind)
        attempt = Attempt(
            run,
            self._table,
            has_hidden_effects=handler is not None and handler.has_hidden_effects,
            is_draining=lambda: self.is_draining,
        )
        owner = run.row.owner
        self.attempts[attempt.run_id] = attempt
        self._shares.take(owner)
        task = asyncio.get_running_loop().create_task(
            self._execute(attempt, handler), name=f"hutch queue: run {attempt.run_id}"
        )
        self._tasks[attempt.run_id] = task

        def park() -> None:
            if attempt.run_id not in self._parked:
                self._parked.add(attempt.run_id)
                self._shares.give_back(owner)
                self.wake()

        def on_done(_: asyncio.Task[None]) -> None:
            park()
            self._parked.remove(attempt.run_id)
            del self._tasks[attempt.run_id], self.attempts[attempt.run_id]
            self.wake()

        attempt.on_park = park
        task.add_done_callback(on_done)

    async def _recover(self, row: QueuedRunRow) -> None:
        """Takes over a run whose server has died: queues it again, or ends it."""
        taken = await self._table.take_over(row.run_id, row.generation, self._holder, self._lease_ms)
        if taken is None:
            return
        logger.warning("the run %s is taken over: its server has died", row.run_id)
        handler = self._handlers.get(row.kind)
        is_repeatable = (
            not row.has_effects
            or (handler is not None and handler.is_repeatable)
            or row.attempts < (row.max_attempts or 1)
            or await self._store.checkpoints.get(row.run_id) is not None
        )
        if row.is_cancelled:
            await self._endings.end_lost(taken, "The run was cancelled, and its server has died")
        elif not is_repeatable:
            message = "The server died after the run had called a tool, which may have had an effect"
            await self._endings.end_lost(taken, message)
        elif row.attempts >= max(MAX_LOST, row.max_attempts or 1):
            await self._endings.end_lost(taken, f"The run has lost {row.attempts} servers")
        else:
            await self._endings.put_back(taken, 0, counts=True, keeps_effects=True)

    # --- executing ---

    async def _execute(self, attempt: Attempt, handler: RunHandler | None) -> None:
        row = attempt.row
        caller_key.set(row.key_id)
        deadline = asyncio.timeout(attempt.seconds_left)
        try:
            if handler is None:
                raise HutchError(f"This server has no handler for runs of the kind {row.kind!r}.")
            if attempt.problem is not None:
                raise VaultError(attempt.problem)
            await self._check_caller(attempt.caller)
            async with deadline:
                result = await handler.run(attempt)
        except asyncio.CancelledError:
            if not attempt.is_lost:
                await self._abandon(attempt)
            raise
        except TimeoutError as error:
            if deadline.expired():
                result = failure("deadline_exceeded", "The run did not end before its deadline")
            else:
                result = _unexpected(error)
        except RunReleased:
            await self._endings.put_back(row, 0, counts=False, keeps_effects=True)
            return
        except LeaseLost:
            if not attempt.is_cancelled:
                return
            result = failure("cancelled", "The run was cancelled")
        except (Busy, RateLimited, StoreError) as error:
            if attempt.has_effects:
                result = failure(error.code, str(error))
            else:
                # The server or the owner has no capacity at the moment, which is not a failure of the run. So
                # queue the run again.
                retry_after = getattr(error, "retry_after", None) or 1.0
                delay_ms = max(MIN_BUSY_DELAY_MS, int(retry_after * 1000))
                await self._endings.put_back(row, delay_ms, counts=False)
                return
        except HutchError as error:
            result = failure(error.code, str(error))
        except Exception as error:
            result = _unexpected(error)
        await self._endings.finish(attempt, result)

    async def _abandon(self, attempt: Attempt) -> None:
        """Gives up a run because the server stops before the run has ended."""
        row = attempt.row
        if not attempt.has_effects or self._handlers[row.kind].is_repeatable:
            await self._endings.put_back(row, 0, counts=False, keeps_effects=True)
        else:
            message = "The server stopped after the run had called a tool, which may have had an effect"
            await self._endings.finish(attempt, failure("interrupted", message))

    # --- leases ---

    async def _keep_renewing(self) -> None:
        interval = min(RENEW_SECONDS, self._lease_ms / 3000)
        while True:
            # Wait between two renewals, because each cancellation of a run sends a signal, and callers may
            # send many.
            await asyncio.sleep(min(MIN_RENEW_SECONDS, interval))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._signal.wait()
            self._signal.clear()
            if not self.attempts:
                self._renewed_at = time.monotonic()
                continue
            try:
                await self._renew()
            except HutchError as error:
                logger.warning("the leases of asynchronous runs cannot be renewed: %s", error)
                if time.monotonic() - self._renewed_at > self._lease_ms / 1000:
                    # Other servers may have taken over these runs, because the leases have expired. So the
                    # runs make no further tool calls until the database says which server holds them.
                    for attempt in self.attempts.values():
                        attempt.is_lost = True
            except Exception:
                # Keep this task alive, because without it all leases of this server would expire.
                logger.exception("an asynchronous run could not be cancelled, or its lease not renewed")

    async def _renew(self) -> None:
        held = {run_id: attempt.row.generation for run_id, attempt in self.attempts.items()}
        kept, cancelled = await self._table.renew(held, self._lease_ms)
        self._renewed_at = time.monotonic()
        for run_id in held:
            attempt = self.attempts.get(run_id)
            if attempt is None:
                continue  # the run has ended meanwhile
            attempt.is_lost = run_id not in kept
            if attempt.is_lost and await self._is_lost(attempt):
                logger.warning("the run %s is stopped: another server has taken it over", run_id)
                self._tasks[run_id].cancel()
            elif run_id in cancelled and not attempt.is_cancelled:
                await attempt.cancel()

    async def _is_lost(self, attempt: Attempt) -> bool:
        """Returns True if another server has the run. Returns False if the run has only just ended on this
        server.
        """
        row = await self._table.get(attempt.run_id)
        is_lost = row is None or row.generation != attempt.row.generation
        return is_lost and attempt.run_id in self._tasks

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._store.listen({CHANNEL: self.wake, SIGNAL_CHANNEL: self._on_signal})
            except HutchError as error:
                logger.info("cannot listen for queued runs: %s", error)
            await asyncio.sleep(RECONNECT_SECONDS)


def _unexpected(error: Exception) -> HandlerResult:
    if isinstance(error, ApiError):
        return failure(error.kind, error.message)
    logger.error("an asynchronous run failed", exc_info=error)
    return failure("internal_error", "The server failed; its log says why")
