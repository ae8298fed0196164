"""How many requests a minute a key may make; counted in the store, so that servers that share one agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hutch.errors import RateLimited

if TYPE_CHECKING:
    from hutch.store.limits import Limits
    from hutch.store.rows import ApiKey

WINDOW_SECONDS = 60


class Rate:
    """What `ability_rate_limit` counts."""

    def __init__(self, per_minute: int) -> None:
        self._most = per_minute

    async def check(self, key: ApiKey, limits: Limits) -> None:
        """Counts one. Raises RateLimited when it is one too many."""
        if not self._most:
            return
        wait = await limits.hit(f"key:{key.id}", self._most, WINDOW_SECONDS)
        if wait is not None:
            raise RateLimited(
                f"This key may make {self._most} requests a minute.", retry_after=math.ceil(wait)
            )


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
