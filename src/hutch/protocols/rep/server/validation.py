"""Validates flows in separate threads with a time limit, one flow of each owner at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from hutch.protocols.rep.ir.budget import ValidationBudget

T = TypeVar("T")

MAX_CPU_SECONDS = 2.0
"""CPU time of one validation. The largest flows take about half a second."""
# More threads would only make the event loop wait longer for the GIL.
_THREADS = 2


class ValidationPool:
    """Runs validations, one at a time for each owner, so that no owner can occupy all threads."""

    def __init__(self, max_cpu_seconds: float = MAX_CPU_SECONDS) -> None:
        self._max_cpu_seconds = max_cpu_seconds
        self._threads = ThreadPoolExecutor(_THREADS, "hutch-flow-validation")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, owner: str, work: Callable[[ValidationBudget], T]) -> T:
        """Runs `work` in a thread. If the caller is cancelled, the thread stops at its next check.

        Raises InvalidFlow if the CPU time is used up.
        """
        budget = ValidationBudget(self._max_cpu_seconds)
        turn = self._turns.setdefault(owner, asyncio.Lock())
        async with turn:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, budget)
            finally:
                budget.stop()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
