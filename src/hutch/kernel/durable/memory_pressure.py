"""Stores waiting runs when memory becomes scarce, so that no process has to be ended to free memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel

logger = logging.getLogger("hutch.runs")

CHECK_SECONDS = 1.0
MAX_PROCESS_SHARE = 0.75
"""Part of `quickjs_process_bytes` above which waiting runs of a process are stored."""
MIN_FREE_SHARE = 0.1
"""Part of the machine's memory below which waiting runs of all processes are stored."""
MAX_STORED_AT_ONCE = 32
# Time after which the process tries again to store a run that it could not store.
_ASK_AGAIN_SECONDS = 30.0
_MEMINFO = Path("/proc/meminfo")


def free_share_of_machine() -> float:
    """Returns the part of the machine's memory that is available, or 1 if that is unknown."""
    try:
        text = _MEMINFO.read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return int(fields["MemAvailable"].split()[0]) / int(fields["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError, ZeroDivisionError):
        return 1.0


class MemoryPressure:
    """Watches the memory of the quickjs processes and of the machine."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        max_process_share: float = MAX_PROCESS_SHARE,
        free_share: Callable[[], float] = free_share_of_machine,
        max_stored_at_once: int = MAX_STORED_AT_ONCE,
    ) -> None:
        self._kernel = kernel
        self._max_process_bytes = max_process_share * kernel.settings.quickjs_process_bytes
        self._free_share = free_share
        self._max_stored_at_once = max_stored_at_once
        self._asked: dict[str, float] = {}

    async def watch(self) -> None:
        """Checks the memory until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check()

    def check(self) -> list[str]:
        """If memory is scarce, requests that waiting durable runs are stored, the oldest first. Returns the
        ids of these runs. The runs continue in this process when their tools return.
        """
        scarce = set(self._runs_in_large_processes())
        if not scarce:
            return []
        kernel, now = self._kernel, monotonic()
        self._asked = {id: at for id, at in self._asked.items() if now - at < _ASK_AGAIN_SECONDS}
        # `active` has the runs in the order in which they began, so the oldest are stored first.
        chosen = [
            id for id in kernel.active if id in scarce and id not in self._asked and kernel.can_store(id)
        ]
        del chosen[self._max_stored_at_once :]
        for run_id in chosen:
            self._asked[run_id] = now
            kernel.store_waiting_run(run_id)
        if chosen:
            logger.info("memory is scarce: storing %d waiting runs", len(chosen))
        return chosen

    def _runs_in_large_processes(self) -> Iterator[str]:
        is_machine_full = self._free_share() < MIN_FREE_SHARE
        for runner in self._kernel.pool.runners.all_shared():
            if is_machine_full or runner.memory_used() > self._max_process_bytes:
                yield from runner.multiplexer.sessions
