"""The quickjs engine: sequential and concurrent executions."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack

import hutch
from bench.baseline import FreshVms
from bench.report import Row, Scale, median, number, percentile

AT_ONCE = 32


async def one(h: hutch.Hutch, engine: str = "quickjs") -> None:
    result = await h.run("1+1", engine=engine)
    if result.result != 2:
        raise RuntimeError(f"1+1 gave {result}")


async def warm(scale: Scale) -> list[Row]:
    """Runs sequential executions through the Python API."""
    rounds = scale.of(40, 8)
    measured: list[float] = []
    reference: list[float] = []
    async with hutch.Hutch() as h, FreshVms() as fresh:
        for _ in range(200):
            await one(h)
        for _ in range(rounds):
            for _ in range(100):
                began = time.perf_counter()
                await one(h)
                measured.append((time.perf_counter() - began) * 1000)
            reference += await fresh.evaluate(40)
    p50, p95 = median(measured), percentile(measured, 0.95)
    base50, base95 = median(reference), percentile(reference, 0.95)
    return [
        Row(
            what="quickjs, warm, `1+1` through the Python API: p50 / p95",
            measured=f"{number(p50)} / {number(p95)} ms",
            baseline=f"{number(base50)} / {number(base95)} ms: a new `quickjs-wasi` VM, no jail",
            target="p50 ≤ 0.5 ms and ≤ half of the baseline",
            met=p50 <= 0.5 and p50 <= base50 / 2,
            data={"p50_ms": p50, "p95_ms": p95, "baseline_p50_ms": base50, "baseline_p95_ms": base95},
        )
    ]


async def at_once(scale: Scale) -> list[Row]:
    """Measures the maximum rate, with a bare loop on every core as the baseline."""
    rounds, count = scale.of(8, 3), scale.of(5_000, 2_000)
    loops = len(os.sched_getaffinity(0))
    measured: list[float] = []
    reference: list[float] = []
    async with AsyncExitStack() as stack:
        h = await stack.enter_async_context(hutch.Hutch())
        fresh = [await stack.enter_async_context(FreshVms()) for _ in range(loops)]
        await _many(h, 1_000)
        for _ in range(rounds):
            measured.append(count / await _many(h, count))
            began = time.perf_counter()
            await asyncio.gather(*(each.evaluate(200) for each in fresh))
            reference.append(200 * loops / (time.perf_counter() - began))
    rate, base = median(measured), median(reference)
    return [
        Row(
            what=f"the same, {AT_ONCE} at once",
            measured=f"{number(rate)} executions/s",
            baseline=f"{number(base)}/s: new VMs in {loops} bare loops at once",
            target="≥ 5 000 executions/s",
            met=rate >= 5_000,
            data={
                "per_second": rate,
                "rounds": measured,
                "baseline_per_second": base,
                "baseline_loops": loops,
            },
        )
    ]


async def _many(h: hutch.Hutch, count: int) -> float:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one(h)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return time.perf_counter() - began
