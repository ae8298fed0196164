"""Rate limiter with sliding windows. Hits are counted in this process, or in PostgreSQL for all processes
that share it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hutch.store.backends.base import Database
from hutch.store.backends.postgres_counters import PostgresCounters, SlidingWindow

EXPIRE_SECONDS = 600.0
"""Interval at which counters that no longer matter are deleted."""


class RateLimiter:
    """Sliding-window limiter. In the middle of a window, half of the hits of the previous window still
    count.
    """

    def __init__(self, database: Database | None) -> None:
        """Creates a limiter. Without a database, hits are counted in memory."""
        self._counters = MemoryCounters() if database is None else PostgresCounters(database)
        self._expired_at = time.monotonic()

    async def hit(self, key: str, limit: int, window_seconds: int) -> float | None:
        """Counts a hit. Returns None if the hit is allowed, otherwise the number of seconds after which to
        retry.
        """
        # The key includes the limit, so that a changed limit starts a new counter.
        window = await self._counters.hit(f"{key}/{limit}/{window_seconds}", limit, window_seconds)
        if window is not None:
            return window.retry_seconds
        if time.monotonic() - self._expired_at >= EXPIRE_SECONDS:
            self._expired_at = time.monotonic()
            await self._counters.delete_expired()
        return None


class MemoryCounters:
    """Counters like `PostgresCounters`, but for a single process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # For each key: the number of the last window since 1970, the hits in it, the hits of the window
        # before, and the time from which none of these hits counts any more.
        self._counters: dict[str, tuple[int, int, int, float]] = {}

    async def hit(self, key: str, limit: int, window_seconds: int) -> SlidingWindow | None:
        """Counts a hit and returns None. If the limit is reached, counts nothing and returns the window."""
        now = self._clock()
        slot = int(now // window_seconds)
        last_slot, last_hits, last_before, _ = self._counters.get(key, (slot, 0, 0, 0.0))
        hits = last_hits if last_slot == slot else 0
        hits_before = {slot: last_before, slot - 1: last_hits}.get(last_slot, 0)
        left = window_seconds - now % window_seconds
        if math.floor(hits_before * left / window_seconds + hits) + 1 > limit:
            return SlidingWindow(hits_before, hits, window_seconds, left)
        self._counters[key] = slot, hits + 1, hits_before, now + 2 * window_seconds
        return None

    async def delete_expired(self) -> None:
        now = self._clock()
        self._counters = {key: counter for key, counter in self._counters.items() if counter[3] >= now}

    def __len__(self) -> int:
        return len(self._counters)
