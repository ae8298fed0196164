"""How often somebody may do something: counted in this process, or in PostgreSQL for all that share it."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING

from hutch.store.database import Database

if TYPE_CHECKING:
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

FORGET_SECONDS = 600.0


class Limits:
    """Counts in a window that slides: half a window later, half of what was before still counts."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._limiter: SlidingWindowCounterRateLimiter | None = None
        self._tidied = time.monotonic()

    async def hit(self, key: str, limit: int, window_seconds: int) -> float | None:
        """Counts one. None if it is allowed; else in how many seconds to come back."""
        # It takes long to load, and whoever sets no limit needs none.
        if self._limiter is None:
            await asyncio.to_thread(importlib.import_module, "hutch.store.counters")
        from limits import RateLimitItemPerSecond

        limiter = self._made()
        item = RateLimitItemPerSecond(limit, window_seconds)
        if await limiter.hit(item, key):
            await self._tidy(limiter)
            return None
        stats = await limiter.get_window_stats(item, key)
        return max(0.0, stats.reset_time - time.time())

    def _made(self) -> SlidingWindowCounterRateLimiter:
        if self._limiter is not None:
            return self._limiter
        from limits.aio.storage import MemoryStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter

        from hutch.store.counters import Counters

        storage = MemoryStorage() if self._database is None else Counters(self._database)
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        return self._limiter

    async def _tidy(self, limiter: SlidingWindowCounterRateLimiter) -> None:
        from hutch.store.counters import Counters

        due = time.monotonic() - self._tidied >= FORGET_SECONDS
        if due and isinstance(limiter.storage, Counters):
            self._tidied = time.monotonic()
            await limiter.storage.forget()
