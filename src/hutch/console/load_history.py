"""Samples the load of the server once a second, for the charts of the console."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from hutch.kernel.metrics import BUCKETS, RunCounters
from hutch.sandbox.pool.pool import Pool

HISTORY_SECONDS = 600
# Number of samples over which percentiles are computed. A single sample covers one second, which may contain
# few runs.
_WINDOW = 10
_PAGE_BYTES = 4096


class LoadSample(msgspec.Struct, frozen=True):
    """The load in one second."""

    time: float
    runs: int
    failed: int
    tool_calls: int
    p50_ms: float | None
    p95_ms: float | None
    in_flight: int
    waiting: int
    processes: int
    warm: int
    memory_bytes: int


class LoadHistory:
    """Samples of the last ten minutes."""

    def __init__(self, counters: RunCounters, pool: Pool) -> None:
        self._counters = counters
        self._pool = pool
        self.samples: deque[LoadSample] = deque(maxlen=HISTORY_SECONDS)
        self._totals: deque[list[int]] = deque([self._buckets()], maxlen=_WINDOW + 1)
        self._longest_ms: deque[float] = deque(maxlen=_WINDOW)
        self._runs, self._failed = self._count_runs()
        self._tool_calls = sum(counters.tool_calls.values())
        self.sampled = asyncio.Event()
        """Set at the next sample, and then replaced by a new event."""

    async def sample_forever(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.take_sample()

    def take_sample(self) -> None:
        runs, failed = self._count_runs()
        tool_calls = sum(self._counters.tool_calls.values())
        self._totals.append(self._buckets())
        window = [new - old for new, old in zip(self._totals[-1], self._totals[0], strict=True)]
        self._longest_ms.append(self._counters.longest_ms)
        self._counters.longest_ms = 0.0
        longest = max(self._longest_ms)
        stats = self._pool.stats()
        self.samples.append(
            LoadSample(
                time=round(time.time(), 3),
                runs=runs - self._runs,
                failed=failed - self._failed,
                tool_calls=tool_calls - self._tool_calls,
                p50_ms=percentile_ms(window, 0.5, longest),
                p95_ms=percentile_ms(window, 0.95, longest),
                in_flight=sum(stats.in_flight.values()),
                waiting=stats.waiting,
                processes=sum(stats.processes.values()),
                warm=sum(stats.warm.values()),
                memory_bytes=_memory_bytes(),
            )
        )
        self._runs, self._failed, self._tool_calls = runs, failed, tool_calls
        event, self.sampled = self.sampled, asyncio.Event()
        event.set()

    def totals(self) -> dict[str, Any]:
        """Returns counts since the start of the server."""
        outcomes: Counter[str] = Counter()
        protocols: Counter[str] = Counter()
        for (protocol, _, outcome), count in self._counters.outcomes.items():
            outcomes[outcome] += count
            protocols[protocol] += count
        return {"outcomes": dict(outcomes), "protocols": dict(protocols)}

    def _count_runs(self) -> tuple[int, int]:
        outcomes = self._counters.outcomes
        total = sum(outcomes.values())
        return total, total - sum(
            count for (_, _, outcome), count in outcomes.items() if outcome in ("ok", "suspended")
        )

    def _buckets(self) -> list[int]:
        totals = [0] * (len(BUCKETS) + 1)
        for durations in self._counters.seconds.values():
            for index, count in enumerate(durations.counts):
                totals[index] += count
        return totals


def percentile_ms(counts: Sequence[int], fraction: float, longest_ms: float) -> float | None:
    """Estimates a percentile of a histogram with the bounds BUCKETS, in milliseconds, at most `longest_ms`.
    None if it is empty.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = total * fraction, 0
    for (low, high), count in zip(pairwise((0.0, *BUCKETS, BUCKETS[-1])), counts, strict=True):
        if count and below + count >= rank:
            return round(min(longest_ms, (low + (high - low) * (rank - below) / count) * 1000), 3)
        below += count
    return BUCKETS[-1] * 1000


def _memory_bytes() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
