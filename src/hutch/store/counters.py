"""What the `limits` library counts with, in PostgreSQL: its own storages are memory, Redis and the like."""

from __future__ import annotations

from limits.aio.storage import SlidingWindowCounterSupport, Storage

from hutch.errors import StoreError
from hutch.store.database import Database, Statement

# `slot` says which window it is, counted since 1970 by the database's clock, which is everybody's.
_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS now"
_HITS = "CASE WHEN excluded.slot = counted.slot THEN counted.hits ELSE 0 END"
_BEFORE = """
    CASE excluded.slot - counted.slot WHEN 0 THEN counted.hits_before WHEN 1 THEN counted.hits ELSE 0 END
"""
# How much of the window before lies within one window from now.
_SHARE = "(1 - ((excluded.ends_at - 2 * :expiry) / :expiry - excluded.slot))"
_ACQUIRE = f"""
    WITH clock AS ({_CLOCK})
    INSERT INTO rate_limits AS counted (key, slot, hits, hits_before, ends_at)
    SELECT :key, floor(now / :expiry), :amount, 0, now + 2 * :expiry FROM clock
    ON CONFLICT (key) DO UPDATE SET
        hits_before = {_BEFORE}, hits = {_HITS} + :amount, slot = excluded.slot, ends_at = excluded.ends_at
    WHERE floor({_BEFORE} * {_SHARE} + {_HITS}) + :amount <= :limit
    RETURNING hits
"""
_LOOK = f"""
    WITH clock AS ({_CLOCK})
    SELECT now, slot, hits, hits_before FROM rate_limits, clock WHERE key = :key
"""


class Counters(Storage, SlidingWindowCounterSupport):
    """Sliding windows: one statement a hit, so that no two processes take the same place."""

    STORAGE_SCHEME = None

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    @property
    def base_exceptions(self) -> type[Exception]:
        return StoreError

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if amount > limit:
            return False
        values = {"key": key, "limit": limit, "expiry": expiry, "amount": amount}
        (changed,) = await self._database.write(Statement(_ACQUIRE, values))
        return bool(changed.rows)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Hits in the window before, how long they still count; hits in this one, how long they will."""
        found = await self._database.read(_LOOK, key=key)
        if not found:
            return 0, 0.0, 0, 0.0
        now, slot, hits, before = found[0]
        age = int(now // expiry) - slot
        previous, current = ((before, hits), (hits, 0))[age] if age in (0, 1) else (0, 0)
        left = expiry - now % expiry
        return previous, left, current, left + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.clear(key)

    async def clear(self, key: str) -> None:
        await self._database.write(Statement("DELETE FROM rate_limits WHERE key = :key", {"key": key}))

    async def reset(self) -> int:
        (changed,) = await self._database.write(Statement("DELETE FROM rate_limits", {}))
        return changed.touched

    async def forget(self) -> None:
        """Removes what no longer counts."""
        sql = f"DELETE FROM rate_limits WHERE ends_at < ({_CLOCK})"
        await self._database.write(Statement(sql, {}))

    async def check(self) -> bool:
        await self._database.read("SELECT 1")
        return True

    # The library's base wants these too, for limiters that we do not use.

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        raise NotImplementedError("only windows that slide are counted here")

    async def get(self, key: str) -> int:
        raise NotImplementedError("only windows that slide are counted here")

    async def get_expiry(self, key: str) -> float:
        raise NotImplementedError("only windows that slide are counted here")
