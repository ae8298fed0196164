"""Holds on suspended runs. As long as a process extends its holds, no other process continues its runs."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.errors import HutchError, ToolError
from hutch.store.models import now

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

HOLD_SECONDS = 30.0
"""Time for which a process holds the runs that it continues. The process extends the hold as long as it
lives.
"""
EXTEND_SECONDS = 10.0
POLL_SECONDS = 2.0
"""Interval at which a process checks for changes by other processes."""


class Holds:
    """Runs that this process continues, and approved calls that it makes."""

    def __init__(self, kernel: Kernel, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._kernel = kernel
        self._open_store = open_store
        self.holder = secrets.token_hex(8)
        """Id of this process in the store."""
        self.runs: set[str] = set()
        self.calls: set[str] = set()
        self._extending: asyncio.Task[None] | None = None

    def add_run(self, run_id: str) -> None:
        self.runs.add(run_id)
        self._keep_extending()

    def add_call(self, call_id: str) -> None:
        self.calls.add(call_id)
        self._keep_extending()

    def before_first_call(self, store: Store, run_id: str) -> Callable[[bool], Awaitable[None]]:
        """Returns a function to await before each tool call of a run. The function records that a tool was
        called. If this process dies after that, the run cannot be continued.
        """
        return _Once(lambda: self._mark_called(store, run_id))

    async def _mark_called(self, store: Store, run_id: str) -> None:
        try:
            is_held = await store.checkpoints.mark_called(run_id, self.holder)
        except HutchError as error:
            raise ToolError(f"The call was not made, because it could not be recorded: {error}") from None
        if not is_held:
            raise ToolError(
                "The call was not made, because the run was cancelled, or another process continues it"
            )

    def _keep_extending(self) -> None:
        if self._extending is None or self._extending.done():
            self._extending = asyncio.get_running_loop().create_task(self._extend())

    async def _extend(self) -> None:
        extended_at = time.monotonic()
        while self.runs or self.calls:
            await asyncio.sleep(POLL_SECONDS)
            try:
                store = await self._open_store()
                for run_id in await store.checkpoints.cancelled([*self.runs]):
                    if run_id in self._kernel.active:
                        self._kernel.active[run_id][1].stop()
                if time.monotonic() - extended_at < EXTEND_SECONDS:
                    continue
                until, extended_at = now(plus_seconds=HOLD_SECONDS), time.monotonic()
                await store.checkpoints.extend(self.holder, until, [*self.runs], [*self.calls])
            except HutchError as error:
                logger.warning("cannot extend the hold of resumed runs: %s", error)

    async def close(self) -> None:
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)


class _Once:
    """Awaits an action on the first call, and does nothing on later calls."""

    def __init__(self, action: Callable[[], Awaitable[None]]) -> None:
        self._action: Callable[[], Awaitable[None]] | None = action
        self._lock = asyncio.Lock()

    async def __call__(self, is_idempotent: bool) -> None:
        if self._action is None:
            return
        async with self._lock:
            if self._action is not None:
                await self._action()
                self._action = None
