"""How long to wait between polls: hardly at first, then as long as nothing has happened warrants."""

from __future__ import annotations

from time import monotonic

LEAST_SECONDS = 0.002
MOST_SECONDS = 0.25
_SHARE = 0.1
_AFTER_EVENTS = 0.1


class Pace:
    """A tenth of the time for which it has been quiet: an end is seen that little later than it could be."""

    def __init__(self) -> None:
        self._quiet_since = monotonic()

    def next(self, *, busy: bool) -> float:
        """The pause after a poll; a run that is busy is not asked faster than needed."""
        now = monotonic()
        if busy:
            self._quiet_since = max(self._quiet_since, now - _AFTER_EVENTS)
        return min(max((now - self._quiet_since) * _SHARE, LEAST_SECONDS), MOST_SECONDS)
