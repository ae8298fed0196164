"""The deno engine: the time of an execution when a warm runner is ready, and the maximum rate of
executions.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time

import hutch
from bench.baseline import deno_run
from bench.kernel.quickjs import one
from bench.report import Row, Scale, median, number, percentile
from hutch.sandbox.runner.profile import profile_for

WORKERS = 8
# Pause before each execution. Between two calls of an agent a warm runner also waits, but longer.
PAUSE = 0.03


async def warm(scale: Scale) -> list[Row]:
    """Measures executions, each of which begins when a warm runner is ready and no other runner is being
    started.
    """
    measured: list[float] = []
    new: list[float] = []
    reference: list[float] = []
    async with hutch.Hutch(deno_warm=1) as h:
        # This first run starts the quickjs runner, which also precompiles the code for deno.
        await one(h, "quickjs")
        for _ in range(3):
            await one(h, "deno")
        for _ in range(scale.of(100, 15)):
            measured.append(await _paced(h, "1+1"))
            measured.append(await _paced(h, "1+1"))
            new.append(await _paced(h, f"1+1 // {next(_counter)}"))
            await _spare(h)
            reference.append(await deno_run() * 1000)
    p50, p95, unseen, base = median(measured), percentile(measured, 0.95), median(new), median(reference)
    return [
        Row(
            what="deno, warm, spare ready for 30 ms: p50 / p95 of known code (new code: p50)",
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


_counter = itertools.count()


async def _new(h: hutch.Hutch) -> None:
    await _run(h, f"1+1 // {next(_counter)}")


async def sustained(scale: Scale) -> list[Row]:
    """Measures the rate of executions. Every deno runner is used once, so the rate shows how fast jailed
    processes start.
    """
    rounds, count = scale.of(5, 2), scale.of(150, 60)
    cores = len(os.sched_getaffinity(0))
    measured: list[float] = []
    reference: list[float] = []
    async with hutch.Hutch() as h:
        await _rate(lambda: _new(h), 10, WORKERS)
        for _ in range(rounds):
            measured.append(await _rate(lambda: _new(h), count, WORKERS))
            await _spare(h)
            reference.append(await _rate(deno_run, count // 3, cores))
    rate, base = median(measured), median(reference)
    return [
        Row(
            what=f"deno, sustained, {WORKERS} at once, new code each time",
            measured=f"{number(rate)} executions/s",
            baseline=f"{number(base)}/s: `deno run`, {cores} at once, no jail",
            target="≥ 60 executions/s",
            met=rate >= 60,
            data={"per_second": rate, "rounds": measured, "baseline_per_second": base},
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
    """Waits until the pool has a warm runner."""
    assert h._kernel is not None
    pool = h._kernel.pool
    while not pool.stats().warm.get("deno"):
        await pool.wait_warm(profile_for("deno"))
        await asyncio.sleep(0)
