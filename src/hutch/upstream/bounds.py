"""How long servers may take and how much they may say."""

from __future__ import annotations

import random

import msgspec


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all servers; the configuration can give one its own `connectSeconds` and `callSeconds`."""

    connect_seconds: float = 30.0
    """To start, to introduce itself and to list its tools."""
    call_seconds: float = 120.0
    alive_seconds: float = 5.0
    """For a sign of life after a call took too long."""

    retry_seconds: float = 0.5
    """Before the first attempt to have a lost server back; twice as long before each one after."""
    most_retry_seconds: float = 30.0
    retries: int = 8
    """Attempts that nobody asked for, one after the other; a call always makes its own."""
    steady_seconds: float = 60.0
    """A server that lived so long starts anew with its attempts."""
    pause_seconds: float = 0.5
    """For so long after an attempt that failed, calls are told of it instead of making one more."""

    pages: int = 500
    tools: int = 5_000
    unsolicited: float = 1_000.0
    """Messages a second that answer nothing, and twice that at once; what is more has to wait."""
    flood_seconds: float = 10.0
    """Who has more to say for so long is not heard any longer."""

    def retry_delay(self, failures: int) -> float:
        longest = min(self.most_retry_seconds, self.retry_seconds * 2.0 ** min(failures, 20))
        # So that servers that were lost together do not come back together.
        return longest * random.uniform(0.5, 1.0)


class Meter:
    """Slows down who says much without being asked."""

    def __init__(self, bounds: Bounds) -> None:
        self._rate = bounds.unsolicited
        self._patience = bounds.flood_seconds
        self._left = self._most = 2 * self._rate
        self._last = 0.0
        self._spent_since: float | None = None

    def delay(self, cost: float, now: float) -> float | None:
        """How long to wait before hearing what costs so much; None if there is no end of it."""
        self._left = min(self._most, self._left + (now - self._last) * self._rate) - cost
        self._last = now
        if self._left >= 0:
            if self._left > self._rate:
                self._spent_since = None
            return 0.0
        if self._spent_since is None:
            self._spent_since = now
        return None if now - self._spent_since > self._patience else -self._left / self._rate
