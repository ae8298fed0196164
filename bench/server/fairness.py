"""Fair use: how long a newcomer's executions take while other owners keep the server busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import hutch
from bench.report import Row, Scale, median, number, percentile
from hutch.api.options import Engine

BUSY_OWNERS = 16
IDLE_RUNS = 18
SHORT = "let n = 0; const end = Date.now() + 10; while (Date.now() < end) n++; return n"
"""Busy for 10 ms."""
LONG = SHORT.replace("10", "3_000")
"""Busy for 3 seconds."""
PAUSE_SECONDS = {"quickjs": 0.2, "deno": 2.0}
"""Time between two executions of the newcomer. All other owners take a turn meanwhile, so the newcomer stays
below its share.
"""
SETTLE_SECONDS = {"quickjs": 1.0, "deno": 4.0}
"""Time until all owners have processes and executions run, or until no process starts any more."""
PER_TURN = 5


async def fairness(scale: Scale) -> list[Row]:
    turns = scale.of(4, 2)
    return [
        await _newcomer("quickjs", SHORT, "owners", turns),
        await _newcomer("quickjs", LONG, "owners with long executions", turns),
        await _newcomer("deno", SHORT, "owners", turns),
        await _beside_idle_runs(scale.of(20, 5)),
    ]


async def _newcomer(engine: Engine, code: str, others: str, turns: int) -> Row:
    """Compares a newcomer's executions on an idle server with those beside busy owners, by turns."""
    idle: list[float] = []
    busy: list[float] = []
    async with hutch.Hutch() as h:
        for _ in range(turns):
            await asyncio.sleep(SETTLE_SECONDS[engine])
            idle += await _times(h, engine, PER_TURN)
            async with _busy(h, engine, code):
                await asyncio.sleep(SETTLE_SECONDS[engine])
                busy += await _times(h, engine, PER_TURN)
    return _row(f"{engine}, `1+1` of a newcomer beside {BUSY_OWNERS} busy {others}", busy, idle)


@asynccontextmanager
async def _busy(h: hutch.Hutch, engine: Engine, code: str) -> AsyncIterator[None]:
    """Keeps BUSY_OWNERS owners busy, and waits until their last executions have ended."""
    is_over = asyncio.Event()

    async def work(owner: str) -> None:
        while not is_over.is_set():
            await h.run(code, engine=engine, owner=owner)

    tasks = [asyncio.create_task(work(f"busy-{number}")) for number in range(BUSY_OWNERS)]
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


async def _beside_idle_runs(count: int) -> Row:
    """Measures executions of one owner while idle executions of another owner hold as many processes as an
    owner may have.
    """
    async with hutch.Hutch() as h:
        idle = await _times(h, "deno", count)
        sleeping = [
            asyncio.create_task(
                h.run(
                    "await new Promise((done) => setTimeout(done, 100_000))",
                    engine="deno",
                    owner="sleeper",
                    timeout_ms=100_000,
                )
            )
            for _ in range(IDLE_RUNS)
        ]
        await asyncio.sleep(SETTLE_SECONDS["deno"])
        busy = await _times(h, "deno", count)
        await _cancel(sleeping)
    return _row(f"deno, `1+1` of an owner beside {IDLE_RUNS} idle executions of another", busy, idle)


def _row(what: str, busy: Sequence[float], idle: Sequence[float]) -> Row:
    p50, p95 = median(busy), percentile(busy, 0.95)
    return Row(
        what=f"{what}: p50 / p95",
        measured=f"{number(p50)} / {number(p95)} ms",
        baseline=f"{number(median(idle))} / {number(percentile(idle, 0.95))} ms: on an idle server",
        ratio=p50 / median(idle),
        target="p50 ≤ twice that of an idle server",
        met=p50 <= 2 * median(idle),
        data={"busy_ms": busy, "idle_ms": idle},
    )


async def _cancel(tasks: list[asyncio.Task[hutch.Result]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _times(h: hutch.Hutch, engine: Engine, count: int) -> list[float]:
    """Returns the milliseconds of executions of the newcomer, with pauses between them."""
    times: list[float] = []
    for _ in range(count):
        await asyncio.sleep(PAUSE_SECONDS[engine])
        began = time.perf_counter()
        result = await h.run("1+1", engine=engine, owner="newcomer")
        times.append((time.perf_counter() - began) * 1000)
        if result.result != 2:
            raise RuntimeError(f"1+1 gave {result}")
    return times
