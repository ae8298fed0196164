"""Memory of many executions that wait for a tool at the same time."""

from __future__ import annotations

import asyncio
import os

import hutch
from bench.baseline import FreshVms
from bench.machine import descendants, memory
from bench.report import Row, Scale, number

COUNT = 1_000


async def suspended(scale: Scale) -> list[Row]:
    """Starts all executions, waits until all are suspended, then lets all complete."""
    count = COUNT
    waiting = 0
    all_waiting, released = asyncio.Event(), asyncio.Event()

    async def pause() -> int:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_waiting.set()
        await released.wait()
        return 1

    async with hutch.Hutch() as h, FreshVms() as fresh:
        # Run something in every runner process first, so that the memory of new processes does not count.
        await asyncio.gather(*(h.run("1+1") for _ in range(200)))
        before = memory(descendants(os.getpid(), {fresh.pid}))
        code = "return await tools.pause()"
        runs = [asyncio.create_task(h.run(code, tools=[pause], timeout_ms=120_000)) for _ in range(count)]
        async with asyncio.timeout(100):
            await all_waiting.wait()
        each = (memory(descendants(os.getpid(), {fresh.pid})) - before) / count
        released.set()
        completed = sum(result.result == 1 for result in await asyncio.gather(*runs))

        before = memory([fresh.pid])
        await fresh.suspend(count)
        base = (memory([fresh.pid]) - before) / count
        await fresh.resume()
    return [
        Row(
            what=f"{number(count)} executions suspended in a tool call at once",
            measured=f"{number(completed)} completed; {number(each)} MB each",
            baseline=f"{number(base)} MB: a `quickjs-wasi` VM each",
            target="all complete, ≤ 2.5 MB each",
            met=completed == count and each <= 2.5,
            data={"completed": completed, "mb_each": each, "baseline_mb_each": base},
        )
    ]
