"""How many flows a minute a key may register, and runs begin; counted in the store, for all that share it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hutch.doors.abilities.limits import WINDOW_SECONDS
from hutch.errors import RateLimited

if TYPE_CHECKING:
    from hutch.store.limits import Limits
    from hutch.vault.apikeys import Caller


class Rate:
    """What `flow_rate_limit` counts. Whoever runs the server has no limit."""

    def __init__(self, per_minute: int) -> None:
        self._most = per_minute

    async def check(self, caller: Caller | None, limits: Limits) -> None:
        """Counts one. Raises RateLimited when it is one too many."""
        if not self._most or caller is None:
            return
        wait = await limits.hit(f"flows:{caller.key.id}", self._most, WINDOW_SECONDS)
        if wait is not None:
            raise RateLimited(
                f"This key may register flows and begin runs {self._most} times a minute.",
                retry_after=math.ceil(wait),
            )
