"""The quickjs engine: sequential and concurrent executions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import hutch
from bench.baseline import FreshVms
from bench.baseline.monty import MontyPool
from bench.report import Row, Scale, loop_name, median, number, percentile
from hutch.api.options import Engine

AT_ONCE = 32


async def one(h: hutch.Hutch, engine: Engine = "quickjs") -> None:
    result = await h.run("1+1", engine=engine)
    if result.result != 2:
        raise RuntimeError(f"1+1 gave {result}")


async def warm(scale: Scale) -> list[Row]:
    """Measures sequential executions through the Python API, with warm runners."""
    rounds = scale.of(40, 8)
    measured: list[float] = []
    reference: list[float] = []
    monty_times: list[float] = []
    async with hutch.Hutch() as h, FreshVms() as fresh, MontyPool() as monty:
        for _ in range(200):
            await one(h)
            await monty.evaluate()
        for _ in range(rounds):
            measured += await _times(lambda: one(h), 100)
            monty_times += await _times(monty.evaluate, 100)
            reference += await fresh.evaluate(40)
    p50, p95 = median(measured), percentile(measured, 0.95)
    base50, base95 = median(reference), percentile(reference, 0.95)
    monty50, monty95 = median(monty_times), percentile(monty_times, 0.95)
    return [
        Row(
            what=f"quickjs, warm, `1+1` through the Python API: p50 / p95, {loop_name()}",
            measured=f"{number(p50)} / {number(p95)} ms",
            baseline=f"{number(monty50)} / {number(monty95)} ms: Monty's pool, no jail;"
            f" {number(base50)} / {number(base95)} ms: a new `quickjs-wasi` VM, no jail",
            ratio=p50 / monty50,
            target="p50 ≤ 0.5 ms and ≤ half of a new VM",
            met=p50 <= 0.5 and p50 <= base50 / 2,
            data={
                "p50_ms": p50,
                "p95_ms": p95,
                "baseline_p50_ms": base50,
                "baseline_p95_ms": base95,
                "monty_p50_ms": monty50,
                "monty_p95_ms": monty95,
            },
        )
    ]


async def at_once(scale: Scale) -> list[Row]:
    """Measures the maximum rate of executions. The baseline is a bare Deno loop on every core."""
    rounds, count = scale.of(8, 3), scale.of(5_000, 2_000)
    loops = len(os.sched_getaffinity(0))
    measured: list[float] = []
    reference: list[float] = []
    monty_rates: list[float] = []
    async with AsyncExitStack() as stack:
        h = await stack.enter_async_context(hutch.Hutch())
        monty = await stack.enter_async_context(MontyPool())
        fresh = [await stack.enter_async_context(FreshVms()) for _ in range(loops)]
        await _rate(lambda: one(h), 1_000)
        for _ in range(rounds):
            measured.append(await _rate(lambda: one(h), count))
            monty_rates.append(await _rate(monty.evaluate, count // 4))
            began = time.perf_counter()
            await asyncio.gather(*(each.evaluate(200) for each in fresh))
            reference.append(200 * loops / (time.perf_counter() - began))
    rate, base, monty_rate = median(measured), median(reference), median(monty_rates)
    return [
        Row(
            what=f"the same, {AT_ONCE} at once, {loop_name()}",
            measured=f"{number(rate)} executions/s",
            baseline=f"{number(monty_rate)}/s: Monty's pool, no jail;"
            f" {number(base)}/s: new VMs in {loops} bare loops at once",
            ratio=rate / monty_rate,
            target="≥ 5 000 executions/s",
            met=rate >= 5_000,
            data={
                "per_second": rate,
                "rounds": measured,
                "baseline_per_second": base,
                "baseline_loops": loops,
                "monty_per_second": monty_rate,
            },
        )
    ]


async def _times(action: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Returns the milliseconds of `count` sequential actions."""
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        await action()
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _rate(action: Callable[[], Awaitable[None]], count: int) -> float:
    """Returns the actions per second, when AT_ONCE of them run concurrently."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await action()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began)
