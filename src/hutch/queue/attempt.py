"""One attempt to execute a queued run, on the server that holds the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import HutchError, ToolError
from hutch.queue.models import QueueCaller, RunReleased

if TYPE_CHECKING:
    from hutch.session.run import RunHandle
    from hutch.store.tables.queue.queued_runs import QueuedRunTable, TakenRun

_LOST = "The call was not made, because another server has the run, or it was cancelled"


class LeaseLost(HutchError):
    """Another server has the run, or the run was cancelled before it began."""

    code = "lease_lost"


class Attempt:
    """One attempt of this server to execute a run. Prepares the handle of the run; see
    `hutch.kernel.run_preparation`.
    """

    def __init__(
        self,
        taken: TakenRun,
        table: QueuedRunTable,
        *,
        has_hidden_effects: bool,
        is_draining: Callable[[], bool],
    ) -> None:
        self.row = taken.row
        self.problem = taken.problem
        """Reason why the run cannot be executed, or None."""
        self.request = taken.request
        self.caller = QueueCaller(
            self.row.owner,
            self.row.key_id,
            None if self.row.scopes is None else tuple(msgspec.json.decode(self.row.scopes)),
        )
        self.is_draining = is_draining
        """Returns True if the server is stopping."""
        self.handle: RunHandle | None = None
        """Handle of the run. None until the protocol has created it."""
        self.is_cancelled = False
        self.is_lost = False
        """True if another server has the run."""
        self.on_park: Callable[[], None] = lambda: None
        """Called by `park`. Gives back the place of the run."""
        self.on_cancel: Callable[[], Awaitable[None]] | None = None
        """Called by `cancel`, if stopping the handle is not enough to cancel the run."""
        self._table = table
        self._has_hidden_effects = has_hidden_effects
        self._waited_seconds = max(0, taken.now - self.row.created_at) / 1000
        self._taken_at = time.monotonic()
        self._has_marked = False
        self._marking = asyncio.Lock()
        deadline = self.row.deadline_at
        self.seconds_left = None if deadline is None else max(0.0, (deadline - taken.now) / 1000)

    @property
    def run_id(self) -> str:
        return self.row.run_id

    @property
    def has_effects(self) -> bool:
        """True if the run may have had effects in this attempt or an earlier one."""
        return self.row.has_effects or self._has_marked

    # --- preparing the handle ---

    def adopt(self, run: RunHandle) -> None:
        if self.handle is not None:
            return  # only the main run of a request gets the id
        self.handle = run
        run.id = self.run_id
        run.started_at = self.row.created_at / 1000
        run.clock.created -= self._waited_seconds + time.monotonic() - self._taken_at
        run.before_call = self._before_call
        if self.is_cancelled:
            run.is_cancelled = True

    async def begin(self, run: RunHandle) -> None:
        self.adopt(run)
        if self.is_lost or self.is_cancelled or (self._has_hidden_effects and not await self._mark_effects()):
            raise LeaseLost

    async def _before_call(self, is_idempotent: bool) -> None:
        try:
            is_held = not self.is_lost and (is_idempotent or await self._mark_effects())
        except HutchError as error:
            raise ToolError(f"The call was not made, because it could not be recorded: {error}") from None
        if not is_held:
            raise ToolError(_LOST)

    async def _mark_effects(self) -> bool:
        """Records that the run may have effects from now on, unless this was recorded before. Returns False
        if the lease is lost.
        """
        async with self._marking:
            if not self._has_marked:
                self._has_marked = await self._table.mark_effects(self.run_id, self.row.generation)
            return self._has_marked

    # --- stopping ---

    async def cancel(self) -> None:
        """Cancels the run."""
        self.is_cancelled = True
        if self.handle is not None:
            self.handle.stop()
        if self.on_cancel is not None:
            await self.on_cancel()

    def park(self) -> None:
        """Lets the server take another run in place of this one. Call this when the run only waits for an
        approval, or for another component that has its own limits.
        """
        self.on_park()

    async def wait_until_over(self, is_over: Callable[[], Awaitable[bool]], interval: float = 0.25) -> None:
        """Waits until `is_over` returns True. Raises RunReleased if the server stops, or if another server
        has the run.
        """
        while not await is_over():
            if self.is_draining() or self.is_lost:
                raise RunReleased
            await asyncio.sleep(interval)
