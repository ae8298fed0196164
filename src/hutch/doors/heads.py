"""Bounds on the head of a request, whoever reads it: how much there may be of it, and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_HEAD_BYTES = 64 * 1024
# From the connection, or from the first byte after the request before, to the end of the head.
HEAD_SECONDS = 20.0


class HeadClock:
    """Runs while a head is expected, and tells when that takes too long."""

    def __init__(self, too_slow: Callable[[], None]) -> None:
        self._too_slow = too_slow
        self._timer: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._timer is not None

    def start(self, seconds: float | None = None) -> None:
        """Unless it runs already; for as long as a head may take, if nothing else is said."""
        if self._timer is None:
            delay = HEAD_SECONDS if seconds is None else seconds
            self._timer = asyncio.get_running_loop().call_later(delay, self._over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._too_slow()
