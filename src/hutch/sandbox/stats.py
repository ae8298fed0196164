"""What the pool tells of itself."""

from __future__ import annotations

import msgspec


class PoolStats(msgspec.Struct, frozen=True):
    """What the pool has and does, for metrics."""

    processes: dict[str, int]
    in_flight: dict[str, int]
    warm: dict[str, int]
    starting: int
    waiting: int
    started: int
    evicted: int
    timeouts_waiting: int
