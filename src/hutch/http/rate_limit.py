"""Limits on requests per minute, for each API key or caller, and on concurrent tool calls."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hutch.errors import Busy, RateLimited
from hutch.owner_shares import OwnerShares

if TYPE_CHECKING:
    from hutch.store.models import ApiKey
    from hutch.store.tables.rate_limits import RateLimiter

WINDOW_SECONDS = 60
# Maximum number of callers to remember. Beyond it, the least recent caller is forgotten and starts again with
# a full bucket.
_MAX_CALLERS = 10_000


class KeyRateLimit:
    """Limit on one kind of request per key, counted in the store so that all servers share it."""

    def __init__(self, name: str, limit_name: str, per_minute: int, message: str) -> None:
        """`name` separates the counters of different limits. 0 per minute means no limit."""
        self._name = name
        self._limit_name = limit_name
        self._limit = per_minute
        self._message = message.format(limit=per_minute)

    @classmethod
    def for_abilities(cls, per_minute: int) -> KeyRateLimit:
        message = "This key may make {limit} requests a minute (ability_rate_limit)."
        return cls("key", "ability_rate_limit", per_minute, message)

    @classmethod
    def for_flows(cls, per_minute: int) -> KeyRateLimit:
        message = "This key may register flows and start runs {limit} times a minute (flow_rate_limit)."
        return cls("flows", "flow_rate_limit", per_minute, message)

    async def check(self, key: ApiKey, limiter: RateLimiter) -> None:
        """Counts one request. Raises RateLimited if the limit is exceeded."""
        if not self._limit:
            return
        wait = await limiter.hit(f"{self._name}:{key.id}", self._limit, WINDOW_SECONDS)
        if wait is not None:
            raise RateLimited(self._message, retry_after=math.ceil(wait), limit=self._limit_name)


class ConcurrencyLimit:
    """Limits concurrent tool calls of all callers (setting `max_tools`) and of each caller (setting
    `max_tools_per_caller`).
    """

    def __init__(self, limit: int, per_caller: int = 0) -> None:
        self._limit = limit
        self._active = 0
        self._shares = OwnerShares(limit, per_caller)

    def check(self, caller: str) -> None:
        """Raises Busy if the limit of all callers together is reached, and RateLimited if the limit of this
        caller is reached.
        """
        if self._active >= self._limit:
            raise Busy(f"{self._limit} tool calls are already running (max_tools).")
        if not self._shares.may_take(caller):
            raise RateLimited(
                "Too many of your tool calls are already running: one caller may have"
                f" {self._shares.per_owner} of them (max_tools_per_caller).",
                limit="max_tools_per_caller",
            )

    @contextlib.contextmanager
    def acquire(self, caller: str) -> Iterator[None]:
        self.check(caller)
        self._active += 1
        self._shares.take(caller)
        try:
            yield
        finally:
            self._active -= 1
            self._shares.give_back(caller)


class CallRateLimit:
    """Limits the calls of each caller with a token bucket that holds the calls of one minute. By default, the
    calls are tool calls, and their number is the setting `rate_limit`.
    """

    def __init__(
        self,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        noun: str = "tool calls",
        limit_name: str = "rate_limit",
    ) -> None:
        self._limit = per_minute
        self._noun = noun
        self._limit_name = limit_name
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, caller: str) -> None:
        """Counts one call. Raises RateLimited if the bucket is empty."""
        if not self._limit:
            return
        tokens = self._tokens(caller)
        if tokens < 1:
            wait = math.ceil((1 - tokens) * 60 / self._limit)
            message = f"The limit is {self._limit} {self._noun} a minute ({self._limit_name})."
            raise RateLimited(message, retry_after=wait, limit=self._limit_name)
        self._store(caller, tokens - 1)

    def charge(self, caller: str, calls: int) -> None:
        """Counts the remaining calls of a batch. The balance may become negative, which delays the next
        request.
        """
        if self._limit:
            self._store(caller, self._tokens(caller) - calls)

    def _tokens(self, caller: str) -> float:
        tokens, updated = self._buckets.get(caller, (float(self._limit), 0.0))
        return min(float(self._limit), tokens + (self._clock() - updated) * self._limit / 60)

    def _store(self, caller: str, tokens: float) -> None:
        self._buckets[caller] = tokens, self._clock()
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _MAX_CALLERS:
            self._buckets.popitem(last=False)
