"""Sliding-window counters in PostgreSQL, shared by all processes that use the database."""

from __future__ import annotations

from typing import NamedTuple

from hutch.store.backends.base import Database, SqlStatement

# `slot` is the number of a window, counted from 1970. It is computed with the clock of the database, because
# the clocks of the processes may differ.
_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS now"
_HITS = "CASE WHEN excluded.slot = counter.slot THEN counter.hits ELSE 0 END"
_HITS_BEFORE = """
    CASE excluded.slot - counter.slot WHEN 0 THEN counter.hits_before WHEN 1 THEN counter.hits ELSE 0 END
"""
# The sliding window has the length of one window and ends now. This is the fraction of the previous window
# that the sliding window covers.
_SHARE = "(1 - ((excluded.ends_at - 2 * :window) / :window - excluded.slot))"
_HIT = f"""
    WITH clock AS ({_CLOCK})
    INSERT INTO rate_limits AS counter (key, slot, hits, hits_before, ends_at)
    SELECT :key, floor(now / :window), 1, 0, now + 2 * :window FROM clock
    ON CONFLICT (key) DO UPDATE SET
        hits_before = {_HITS_BEFORE}, hits = {_HITS} + 1, slot = excluded.slot, ends_at = excluded.ends_at
    WHERE floor({_HITS_BEFORE} * {_SHARE} + {_HITS}) + 1 <= :limit
    RETURNING hits
"""
_READ = f"""
    WITH clock AS ({_CLOCK})
    SELECT now, slot, hits, hits_before FROM rate_limits, clock WHERE key = :key
"""


class SlidingWindow(NamedTuple):
    """Hits in the previous and the current window. Hits of the previous window count in proportion to
    `seconds_left`.
    """

    hits_before: int
    hits: int
    seconds: int
    seconds_left: float
    """Time until the current window ends."""

    @property
    def retry_seconds(self) -> float:
        """Time until the weighted count decreases: until a hit of the previous window expires, or until the
        current window ends.
        """
        waits = [self.seconds_left % (self.seconds / self.hits_before)] if self.hits_before else []
        if self.hits:
            waits.append(self.seconds_left % self.seconds)
        return min(waits, default=0.0)


class PostgresCounters:
    """Counters of hits. Each hit is checked and counted in one statement, so concurrent processes cannot
    exceed the limit.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hit(self, key: str, limit: int, window_seconds: int) -> SlidingWindow | None:
        """Counts a hit and returns None. If the limit is reached, counts nothing and returns the window."""
        values = {"key": key, "limit": limit, "window": window_seconds}
        (changed,) = await self._database.write(SqlStatement(_HIT, values))
        return None if changed.rows else await self._read(key, window_seconds)

    async def _read(self, key: str, window_seconds: int) -> SlidingWindow:
        rows = await self._database.read(_READ, key=key)
        if not rows:
            return SlidingWindow(0, 0, window_seconds, 0.0)
        now, slot, hits, hits_before = rows[0]
        age = int(now // window_seconds) - slot
        previous, current = ((hits_before, hits), (hits, 0))[age] if age in (0, 1) else (0, 0)
        return SlidingWindow(previous, current, window_seconds, window_seconds - now % window_seconds)

    async def delete_expired(self) -> None:
        sql = f"DELETE FROM rate_limits WHERE ends_at < ({_CLOCK})"
        await self._database.write(SqlStatement(sql, {}))
