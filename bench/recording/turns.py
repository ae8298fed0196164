"""Compares runs that are recorded at the level `errors` with runs that are not recorded, by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bench.report import Row, median, number

WARM_UP_TURNS = 4
MAX_RATIO = 1.05


class Turn(NamedTuple):
    """Medians of two neighbouring batches, in milliseconds."""

    recorded: float
    bare: float


async def batch(run: Callable[[], Awaitable[object]], size: int) -> float:
    """Returns the median of the milliseconds of one run."""
    times = []
    for _ in range(size):
        began = time.perf_counter()
        await run()
        times.append((time.perf_counter() - began) * 1000)
    return median(times)


async def alternate(
    recorded: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]], turns: int
) -> list[Turn]:
    """Measures both by turns. `recorded` and `bare` return the milliseconds of one batch."""
    measured = []
    for turn in range(WARM_UP_TURNS + turns):
        # Alternate the order, because the batch that comes first may find colder caches.
        if turn % 2:
            without = await bare()
            measured.append(Turn(await recorded(), without))
        else:
            measured.append(Turn(await recorded(), await bare()))
    return measured[WARM_UP_TURNS:]


def comparison(what: str, turns: Sequence[Turn]) -> Row:
    recorded, bare = median(turn.recorded for turn in turns), median(turn.bare for turn in turns)
    # Compare batches of the same turn with each other, because the machine's speed varies over time.
    # `statistics.median` averages the two middle values, which differ much if there are few turns.
    ratio = statistics.median(turn.recorded / turn.bare for turn in turns)
    return Row(
        what=f"recording `errors` against none, {what}: p50",
        measured=f"{number(recorded)} ms",
        baseline=f"{number(bare)} ms: the same without records",
        ratio=ratio,
        target=f"ratio of neighbouring turns ≤ {MAX_RATIO}",
        met=ratio <= MAX_RATIO,
        data={"recorded_ms": recorded, "bare_ms": bare, "ratio": ratio, "turns": list(turns)},
    )
