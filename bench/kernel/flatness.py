"""Checks that time and memory do not grow, from the tenth to the hundred-thousandth execution."""

from __future__ import annotations

import os
import time
from array import array

import hutch
from bench.baseline import FreshVms
from bench.kernel.quickjs import one
from bench.machine import descendants, memory
from bench.report import Row, Scale, median, number

MARKS = (10, 100, 1_000, 10_000, 100_000)
# The baseline is slow, so it ends after this number of evaluations.
BASELINE_MAX = 1_000


async def flatness(scale: Scale) -> list[Row]:
    """Runs one execution after the other in one Hutch; measures time and memory at every mark."""
    marks = MARKS[: scale.of(5, 4)]
    times = array("d", bytes(8 * marks[-1]))
    measured: list[dict[str, float]] = []
    reference: list[dict[str, float]] = []
    async with hutch.Hutch() as h, FreshVms() as fresh:
        # Warm up, so that one-time work of the processes, such as compiling code, is not measured.
        for _ in range(1_000):
            await one(h)
        done = 0
        for mark in marks:
            for index in range(done, mark):
                began = time.perf_counter()
                await one(h)
                times[index] = (time.perf_counter() - began) * 1000
            runners = descendants(os.getpid(), {fresh.pid})
            measured.append(
                {
                    "executions": mark,
                    "p50_ms": median(times[done:mark]),
                    "mb": memory([os.getpid(), *runners]),
                }
            )
            if mark <= BASELINE_MAX:
                p50 = median(await fresh.evaluate(mark - done))
                reference.append({"executions": mark, "p50_ms": p50, "mb": memory([fresh.pid])})
            done = mark
    slower = measured[-1]["p50_ms"] / min(each["p50_ms"] for each in measured)
    more = measured[-1]["mb"] - measured[0]["mb"]
    return [
        Row(
            what=f"from 10 to {number(marks[-1])} executions: p50 at " + ", ".join(map(number, marks)),
            measured=", ".join(number(each["p50_ms"]) for each in measured) + " ms",
            baseline=", ".join(number(each["p50_ms"]) for each in reference) + " ms: new VMs",
            target="flat (last at most 1.25 times the best)",
            met=slower <= 1.25,
            data={"marks": measured, "baseline_marks": reference, "slower": slower},
        ),
        Row(
            what="the same: memory of the host and its runners",
            measured=", ".join(number(each["mb"]) for each in measured) + " MB",
            baseline=", ".join(number(each["mb"]) for each in reference) + " MB: new VMs",
            target="flat (last at most 32 MB more than the first)",
            met=more <= 32,
            data={"more_mb": more},
        ),
    ]
