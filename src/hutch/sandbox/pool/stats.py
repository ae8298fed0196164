"""Pool statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from hutch.sandbox.runner.base import Runner

EndReason = Literal[
    "used",  # its only execution has ended
    "recycled",  # served the maximum number of executions
    "idle",  # unused for too long
    "silent",  # unresponsive
    "crowded out",  # evicted for another runner
    "lost",  # exited by itself
]


class PoolCounters(msgspec.Struct):
    started: int = 0
    ended: Counter[EndReason] = msgspec.field(default_factory=Counter)
    refused: int = 0
    """Executions rejected because the queue was full or the wait was too long."""
    waited: int = 0
    """Executions that had to wait, including executions that gave up."""
    waited_seconds: float = 0.0


class PoolStats(msgspec.Struct, frozen=True):
    processes: dict[str, int]
    in_flight: dict[str, int]
    warm: dict[str, int]
    starting: int
    waiting: int
    counters: PoolCounters

    @classmethod
    def of(
        cls,
        in_use: Iterable[Runner],
        warm: Iterable[Runner],
        starting: int,
        waiting: int,
        counters: PoolCounters,
    ) -> PoolStats:
        processes: Counter[str] = Counter()
        in_flight: Counter[str] = Counter()
        for runner in in_use:
            processes[runner.profile.engine] += 1
            in_flight[runner.profile.engine] += runner.in_flight
        ready: Counter[str] = Counter(runner.profile.engine for runner in warm)
        return cls(dict(processes + ready), dict(in_flight), dict(ready), starting, waiting, counters)


def retry_after(waiting: int) -> float:
    """Returns the suggested delay in seconds before a retry. It grows with the length of the queue."""
    return float(min(30, 1 + waiting // 20))
