"""Suspends runs that wait for approvals, and continues suspended runs while a server runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from hutch.errors import HutchError
from hutch.kernel.durable.memory_pressure import MemoryPressure
from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals

if TYPE_CHECKING:
    from hutch.kernel.durable.suspended_runs import SuspendedRuns
    from hutch.kernel.kernel import Kernel
    from hutch.protocols.toolscript.gateway.gateway import Gateway

logger = logging.getLogger("hutch")

CONTINUE_SECONDS = 10.0
"""Interval of `SuspendedRunsTask`. Other servers may change the stored runs at any time."""


def suspend_for_approvals(
    gateway: Gateway, runs: SuspendedRuns, kernel: Kernel, protocols: frozenset[str]
) -> StoredApprovals:
    """Allows `gateway` to suspend runs of these protocols that wait for an approval."""

    async def call_tool(server: str, tool: str, arguments: dict[str, Any], run_id: str) -> Any:
        return await gateway.call(server, tool, arguments, run=run_id, is_approved=True)

    def may_suspend(run_id: str) -> bool:
        execution = kernel.active[run_id][0] if run_id in kernel.active else None
        if execution is None or execution.turn is not None or execution.asks_client:
            return False
        return execution.protocol in protocols

    stored = StoredApprovals(gateway.approvals, runs, call_tool, may_suspend)
    gateway.stored_approvals = stored
    return stored


class SuspendedRunsTask:
    """Asks for the approvals of stored runs again, continues runs whose calls have a result, and ends runs
    that cannot be continued.
    """

    def __init__(self, gateway: Gateway, runs: SuspendedRuns, kernel: Kernel) -> None:
        self._gateway = gateway
        self._runs = runs
        self._memory = MemoryPressure(kernel)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._look()
        self._tasks = [asyncio.create_task(self._keep_looking()), asyncio.create_task(self._memory.watch())]

    async def _look(self) -> None:
        stored = self._gateway.stored_approvals
        try:
            await self._runs.ends.end_interrupted()
            if stored is not None:
                await stored.synchronize()
        except HutchError as error:
            logger.warning("the suspended runs cannot be continued: %s", error)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(CONTINUE_SECONDS)
            await self._look()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
