"""The deno engine: with a spare ready, and as fast as spares can be made."""

from __future__ import annotations

import asyncio
import itertools
import os
import time

import hutch
from bench.baseline import deno_run
from bench.quickjs import one
from bench.report import Row, Scale, median, number, percentile
from hutch.sandbox.profile import profile_for

WORKERS = 8
# Of a spare between its start and its use: as between two calls of an agent, but shorter.
PAUSE = 0.03


async def warm(scale: Scale) -> list[Row]:
    """Paced, so that every execution finds a spare and nothing else is being started."""
    ours: list[float] = []
    new: list[float] = []
    theirs: list[float] = []
    async with hutch.Hutch(deno_warm=1) as h:
        # Who prepares code is there too.
        await one(h, "quickjs")
        for _ in range(3):
            await one(h, "deno")
        for _ in range(scale.of(100, 15)):
            ours.append(await _paced(h, "1+1"))
            ours.append(await _paced(h, "1+1"))
            new.append(await _paced(h, f"1+1 // {next(_numbers)}"))
            await _spare(h)
            theirs.append(await deno_run() * 1000)
    p50, p95, unseen, base = median(ours), percentile(ours, 0.95), median(new), median(theirs)
    return [
        Row(
            what="deno, warm, a spare that waited 30 ms: p50 / p95 of code run before (of new code: p50)",
            measured=f"{number(p50)} / {number(p95)} ms ({number(unseen)} ms)",
            baseline=f"{number(base)} ms: `deno run`, no jail",
            target="p50 ≤ 2 ms, baseline at least 8 times slower",
            met=p50 <= 2 and base >= 8 * p50,
            data={"p50_ms": p50, "p95_ms": p95, "unseen_p50_ms": unseen, "baseline_p50_ms": base},
        )
    ]


async def _paced(h: hutch.Hutch, code: str) -> float:
    await _spare(h)
    await asyncio.sleep(PAUSE)
    began = time.perf_counter()
    await _run(h, code)
    return (time.perf_counter() - began) * 1000


async def _run(h: hutch.Hutch, code: str) -> None:
    result = await h.run(code, engine="deno")
    if result.result != 2:
        raise RuntimeError(f"{code}: {result}")


_numbers = itertools.count()


async def _new(h: hutch.Hutch) -> None:
    await _run(h, f"1+1 // {next(_numbers)}")


async def sustained(scale: Scale) -> list[Row]:
    """Every process is used once, so this is how fast jailed processes can be started."""
    rounds, count = scale.of(5, 2), scale.of(150, 60)
    cores = len(os.sched_getaffinity(0))
    ours: list[float] = []
    theirs: list[float] = []
    async with hutch.Hutch() as h:
        await _rate(lambda: _new(h), 10, WORKERS)
        for _ in range(rounds):
            ours.append(await _rate(lambda: _new(h), count, WORKERS))
            await _spare(h)
            theirs.append(await _rate(deno_run, count // 3, cores))
    rate, base = median(ours), median(theirs)
    return [
        Row(
            what=f"deno, sustained, {WORKERS} at once, new code each time",
            measured=f"{number(rate)} executions/s",
            baseline=f"{number(base)}/s: `deno run`, {cores} at once, no jail",
            target="≥ 60 executions/s",
            met=rate >= 60,
            data={"per_second": rate, "rounds": ours, "baseline_per_second": base},
        )
    ]


async def _rate(action, count: int, workers: int) -> float:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await action()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return count / (time.perf_counter() - began)


async def _spare(h: hutch.Hutch) -> None:
    """Waits until the pool has a process to lend."""
    assert h._kernel is not None
    pool = h._kernel.pool
    while not pool.stats().warm.get("deno"):
        await pool.warmed(profile_for("deno"))
        await asyncio.sleep(0)
