"""How much a minute a key may do; counted in the store, so that servers that share one agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hutch.errors import RateLimited

if TYPE_CHECKING:
    from hutch.store.limits import Limits
    from hutch.store.rows import ApiKey

WINDOW_SECONDS = 60


class Rate:
    """What one setting counts."""

    def __init__(self, name: str, per_minute: int, message: str) -> None:
        """`name` tells its counts from others'. `message` says `{most}`. 0 a minute is without a limit."""
        self._name = name
        self._most = per_minute
        self._message = message.format(most=per_minute)

    @classmethod
    def of_abilities(cls, per_minute: int) -> Rate:
        return cls("key", per_minute, "This key may make {most} requests a minute.")

    @classmethod
    def of_flows(cls, per_minute: int) -> Rate:
        return cls("flows", per_minute, "This key may register flows and begin runs {most} times a minute.")

    async def check(self, key: ApiKey, limits: Limits) -> None:
        """Counts one. Raises RateLimited when it is one too many."""
        if not self._most:
            return
        wait = await limits.hit(f"{self._name}:{key.id}", self._most, WINDOW_SECONDS)
        if wait is not None:
            raise RateLimited(self._message, retry_after=math.ceil(wait))


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
