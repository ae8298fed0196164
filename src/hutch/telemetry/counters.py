"""Counters of components since the process started. They are plain numbers, so that counting is cheap."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

MAX_OWNERS = 50
"""Maximum number of owners with separate metrics. The others are counted together."""
MAX_CANDIDATES = 1_000
OTHER_OWNERS = "other"


class Histogram:
    """Durations in seconds, counted in buckets that have upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns the number of values up to each bound, as in a Prometheus histogram."""
        total, pairs = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs


class InstallCounters:
    """Installations of npm packages."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.seconds = Histogram((0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0))

    def add(self, outcome: str, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.seconds.add(seconds)


class EgressCounters:
    """Outgoing requests. `client` is `fetch` for the HTTP client, and `proxy` for connections of tools."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()

    def add(self, client: str, outcome: str) -> None:
        self.outcomes[client, outcome] += 1

    def add_bytes(self, client: str, sent: int, received: int) -> None:
        self.sent_bytes[client] += sent
        self.received_bytes[client] += received


class OwnerCounters:
    """Runs of the most active owners, and of all others together.

    A counter never decreases. While an owner is not among the most active, its new runs count as `other`.
    """

    def __init__(self, max_owners: int = MAX_OWNERS) -> None:
        self._max_owners = max_owners
        self._shown: dict[str, Counter[bool]] = {}
        self._other: Counter[bool] = Counter()
        self._recent: Counter[str] = Counter()
        """Runs by owner since the last call of `rank`. Bounded in the number of owners that have no separate
        metrics.
        """

    def add(self, owner: str, is_ok: bool) -> None:
        shown = self._shown.get(owner)
        if shown is None and len(self._shown) < self._max_owners:
            shown = self._shown[owner] = Counter()
        (self._other if shown is None else shown)[is_ok] += 1
        if shown is not None or owner in self._recent or len(self._recent) < MAX_CANDIDATES:
            self._recent[owner] += 1

    def rank(self) -> None:
        """Selects the owners with the most runs since the last call as the owners to show. Called before
        metrics are read.
        """
        if len(self._recent) > self._max_owners:
            # Among owners with equally many runs, prefer owners that are already shown.
            ranked = sorted(self._recent, key=lambda owner: (-self._recent[owner], owner not in self._shown))
            kept = set(ranked[: self._max_owners])
            for owner in [*self._shown]:
                if len(self._shown) + len(kept - self._shown.keys()) <= self._max_owners:
                    break
                if owner not in kept:
                    del self._shown[owner]
            for owner in ranked[: self._max_owners]:
                self._shown.setdefault(owner, Counter())
        self._recent.clear()

    def items(self) -> list[tuple[str, bool, int]]:
        """Returns (owner, success, number of runs). The entries of `other`, if there are any, come last."""
        found = [(owner, ok, n) for owner, counts in self._shown.items() for ok, n in counts.items()]
        return found + [(OTHER_OWNERS, ok, n) for ok, n in self._other.items()]
