"""What the pool tells of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from hutch.sandbox.runner import Runner

Why = Literal["used", "recycled", "idle", "silent", "crowded out", "lost"]
"""Used once; after many executions; for want of any; because it did not answer; for another; by itself."""


class Tally(msgspec.Struct):
    """What has happened since the pool was made."""

    started: int = 0
    ended: Counter[Why] = msgspec.field(default_factory=Counter)
    refused: int = 0
    """Executions that got no place."""
    waited: int = 0
    """Executions that had to wait for one, with or without success."""
    waited_seconds: float = 0.0


class PoolStats(msgspec.Struct, frozen=True):
    """What the pool has and does, for metrics."""

    processes: dict[str, int]
    in_flight: dict[str, int]
    warm: dict[str, int]
    starting: int
    waiting: int
    tally: Tally

    @classmethod
    def of(
        cls, lent: Iterable[Runner], warm: Iterable[Runner], starting: int, waiting: int, tally: Tally
    ) -> PoolStats:
        """Of runners that have an owner or are in use, and of those that wait for one."""
        processes: Counter[str] = Counter()
        in_flight: Counter[str] = Counter()
        for runner in lent:
            processes[runner.profile.engine] += 1
            in_flight[runner.profile.engine] += runner.in_flight
        ready: Counter[str] = Counter(runner.profile.engine for runner in warm)
        return cls(dict(processes + ready), dict(in_flight), dict(ready), starting, waiting, tally)
