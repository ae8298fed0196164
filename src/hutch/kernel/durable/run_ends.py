"""Ends of suspended runs: stores results, waits for them, and ends runs that cannot continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.errors import ExecutionError, ResumeError
from hutch.kernel.durable.holds import POLL_SECONDS, Holds
from hutch.kernel.durable.resume_errors import cancelled, ended, expired, not_found
from hutch.kernel.durable.stored_result import decode_result, encode_result
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.session.run import SUSPENDED, Listener, Result
from hutch.store.models import now

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

INTERRUPTED = "The process of the run died after the run had called a tool"


class RunEnds:
    """Ends of the suspended runs of one store."""

    def __init__(self, settings: Settings, holds: Holds, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._settings = settings
        self._holds = holds
        self._open_store = open_store
        self._listeners: dict[str, list[Listener]] = {}
        """Listeners by run id, for runs that were suspended in this process and have a caller that waits for
        their end.
        """
        self._waiters: dict[str, list[asyncio.Future[Result]]] = {}
        """Waiters for the ends of runs."""
        self.on_cancelled: list[Callable[[str], None]] = []
        """Called with the id of each run that was cancelled while it was suspended."""

    # --- waiting ---

    async def wait(
        self, run_id: str, owner: str, listeners: list[Listener], give_up: Callable[[], bool]
    ) -> Result | None:
        """Waits until a suspended run has ended, in this process or in another one. Returns None as soon as
        `give_up` returns True. Cancelling this call does not affect the run.

        `listeners` get the events of the run if it continues in this process.
        """
        if listeners:
            self._listeners[run_id] = listeners
        end: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(run_id, [])
        waiters.append(end)
        try:
            while not give_up():
                try:
                    result = await self.result(run_id, owner)
                except ResumeError:
                    return end.result() if end.done() else await self._result_of_deleted(run_id)
                if result is not None:
                    return result
                await asyncio.wait([end], timeout=POLL_SECONDS)
                if end.done():
                    return end.result()
            return None
        finally:
            if self._listeners.get(run_id) is listeners:
                del self._listeners[run_id]
            waiters.remove(end)
            if not waiters:
                del self._waiters[run_id]

    def listeners_of(self, run_id: str) -> list[Listener]:
        """Returns the listeners of a caller that waits for the end of a run."""
        return self._listeners.get(run_id, [])

    async def _result_of_deleted(self, run_id: str) -> Result:
        """Returns the result of a run that another server has deleted from the store."""
        row = await (await self._open_store()).runs.get(run_id)
        outcome = "interrupted" if row is None or row.outcome == SUSPENDED else row.outcome
        error = ExecutionError(outcome, f"The run ended while it was suspended: {outcome}")
        return Result(ok=False, error=error, run_id=run_id)

    async def result(self, run_id: str, owner: str) -> Result | None:
        """Returns the result of a run that was suspended; None if it has not ended. Raises ResumeError."""
        await self.check_owner(run_id, owner)
        parts = await (await self._open_store()).checkpoints.result(run_id)
        max_bytes = self._settings.max_result_bytes + self._settings.max_file_bytes
        return None if parts is None else await decode_result(parts, run_id, max_bytes)

    async def check_owner(self, run_id: str, owner: str) -> None:
        """Raises ResumeError unless the run belongs to this owner and is or was suspended."""
        row = await (await self._open_store()).checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise not_found(run_id)

    async def refusal(self, store: Store, run_id: str, owner: str) -> ResumeError:
        """Returns the error for a run that cannot be continued. Raises HutchError."""
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            return not_found(run_id)
        if row.state == "called" and row.held_until is not None and row.held_until < now():
            await self.end_interrupted()
            message = f"The run {run_id} was interrupted: its process died after it had called a tool."
            return ResumeError("checkpoint_ended", message)
        if row.state == "ended":
            return ended(run_id)
        if row.state == "suspended":
            return expired(row)
        return ResumeError("checkpoint_in_use", f"The run {run_id} is already running.")

    # --- ending ---

    async def end_held(self, run_id: str, result: Result) -> None:
        """Stores the result of a run that this process holds. Raises HutchError."""
        self._holds.runs.discard(run_id)
        await self._end(await self._open_store(), run_id, self._holds.holder, result)
        self._report_end(run_id, result)

    async def cancel(self, run_id: str, owner: str) -> bool:
        """Ends a suspended run. Returns False if it is not suspended."""
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        error = cancelled()
        end = Result(ok=False, error=ExecutionError(error.code, str(error)), run_id=run_id)
        # Keep the row, so that no sealed copy of the run can be continued.
        if row is None or row.owner != owner or not await self._end(store, run_id, None, end):
            return False
        # Write the queued records first: the record to change may be among them if the run was suspended just
        # now.
        await store.write_behind.flush()
        await store.runs.end_suspended(run_id, "cancelled")
        self._report_end(run_id, end)
        for listener in self.on_cancelled:
            listener(run_id)
        return True

    async def request_cancel(self, run_id: str, owner: str) -> bool:
        """Requests the cancellation of a run that another process continues. That process stops the run
        within a few seconds. The run finishes the calls that it has begun and makes no others. Returns False
        if no process continues the run.
        """
        return await (await self._open_store()).checkpoints.request_cancel(run_id, owner)

    async def stop(self, run_id: str, owner: str) -> None:
        """Ends a suspended run, or requests its cancellation if a process continues it."""
        if not await self.cancel(run_id, owner):
            await self.request_cancel(run_id, owner)

    async def forget(self, run_id: str, owner: str) -> None:
        """Deletes a run that is suspended or has ended, and its result."""
        await self.cancel(run_id, owner)
        await (await self._open_store()).checkpoints.delete(run_id, owner)

    async def end_interrupted(self) -> int:
        """Ends runs that cannot be continued, because they have expired or because their process died after a
        tool call. Returns their number.
        """
        store = await self._open_store()
        count = 0
        for row in await store.checkpoints.interrupted():
            result = Result(ok=False, error=ExecutionError("interrupted", INTERRUPTED), run_id=row.run_id)
            if await self._end(store, row.run_id, row.holder, result, is_dead=True):
                count += 1
                await store.runs.end_suspended(row.run_id, "interrupted")
                logger.warning("the suspended run %s ended: interrupted", row.run_id)
        for row in await store.checkpoints.delete_expired(await store.retention.now()):
            count += 1
            # Do this for ended runs, too. The record of such a run is still `suspended` if the process died
            # before it wrote the record.
            await store.runs.end_suspended(row.run_id, "expired")
            if row.state != "ended":
                logger.warning("the suspended run %s ended: expired", row.run_id)
        return count

    async def _end(
        self, store: Store, run_id: str, holder: str | None, result: Result, *, is_dead: bool = False
    ) -> bool:
        expires_at = now(plus_seconds=self._settings.checkpoint_days * DAY_SECONDS)
        parts = await encode_result(result)
        return await store.checkpoints.end(run_id, holder, parts, expires_at, is_dead=is_dead)

    def _report_end(self, run_id: str, result: Result) -> None:
        for waiter in self._waiters.get(run_id, ()):
            if not waiter.done():
                waiter.set_result(result)
