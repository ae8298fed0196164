"""How many tool calls at once, and how many a minute."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from hutch.doors.tpmjs.answers import Failed
from hutch.errors import Busy

# Callers that are remembered; who was forgotten begins anew.
_MAX_CALLERS = 10_000


class Places:
    """What `max_tools` counts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def check(self) -> None:
        """Raises Busy when all are taken."""
        if self._taken >= self._most:
            raise Busy(f"{self._most} tool calls are going on already.")

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        self.check()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class Rate:
    """What `rate_limit` counts: everybody has a bucket that holds a minute's calls and fills steadily."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = per_minute
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, caller: str) -> None:
        """Counts one call. Raises Failed when it is one too many."""
        if not self._most:
            return
        left = self._now(caller)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / self._most)
            message = f"The limit is {self._most} tool calls a minute. Try again in {wait} s."
            raise Failed("rate_limited", message, headers={"Retry-After": str(wait)})
        self._keep(caller, left - 1)

    def count(self, caller: str, more: int) -> None:
        """Counts calls that came with one that was let in: whoever overdraws waits the longer."""
        if self._most:
            self._keep(caller, self._now(caller) - more)

    def _now(self, caller: str) -> float:
        left, when = self._left.get(caller, (float(self._most), 0.0))
        return min(float(self._most), left + (self._clock() - when) * self._most / 60)

    def _keep(self, caller: str, left: float) -> None:
        self._left[caller] = left, self._clock()
        self._left.move_to_end(caller)
        if len(self._left) > _MAX_CALLERS:
            self._left.popitem(last=False)


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
