"""Cost of a tool call: many sequential calls in one execution, alone and beside other executions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import hutch
from bench import machine
from bench.baseline import FreshVms
from bench.baseline.echo import echo
from bench.baseline.monty import MontyPool
from bench.report import Row, Scale, loop_name, median, number
from hutch.api.options import Engine

CALLS = 500
AT_ONCE = 4
CODE = f"for (let n = 0; n < {CALLS};) n = await tools.following({{ n }})"


async def following(n: int) -> int:
    """Return n + 1."""
    return n + 1


async def tool_calls(scale: Scale) -> list[Row]:
    """Measures calls with validated input and output. Monty's calls are not validated."""
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    async with hutch.Hutch() as h, FreshVms() as fresh, MontyPool(AT_ONCE) as monty:

        async def run(engine: Engine) -> None:
            result = await h.run(CODE, tools=[following], engine=engine, timeout_ms=60_000)
            result.raise_for_error()

        async def monty_calls() -> None:
            await monty.call(following, CALLS)

        subjects: dict[str, tuple[Callable[[], Awaitable[None]], int]] = {
            "quickjs": (lambda: run("quickjs"), 1),
            "monty": (monty_calls, 1),
            "quickjs_at_once": (lambda: run("quickjs"), AT_ONCE),
            "monty_at_once": (monty_calls, AT_ONCE),
            "deno": (lambda: run("deno"), 1),
        }
        for action, at_once in subjects.values():
            await _measure(action, at_once)
        for _ in range(scale.of(20, 5)):
            for name, (action, at_once) in subjects.items():
                milliseconds, cpu_milliseconds = await _measure(action, at_once)
                wall.setdefault(name, []).append(milliseconds)
                cpu.setdefault(name, []).append(cpu_milliseconds)
            wall.setdefault("bare_function", []).append(await fresh.call(CALLS) / CALLS)
            # The first round only warms up and does not count.
            wall.setdefault("echo", []).extend((await echo(CALLS, 3))[1:])
    data = {f"{name}_ms": median(each) for name, each in wall.items()}
    data |= {f"{name}_cpu_ms": median(each) for name, each in cpu.items()}
    alone, beside = data["quickjs_ms"], data["quickjs_at_once_ms"]
    return [
        Row(
            what=f"a tool call ({CALLS} sequential in one execution), {loop_name()}",
            measured=f"{_cost(data, 'quickjs')}; deno {number(data['deno_ms'])} ms",
            baseline=f"{_cost(data, 'monty')}: Monty, no jail, no validation;"
            f" {number(data['echo_ms'])} ms: a message of that size to a bare Deno and back;"
            f" {number(data['bare_function_ms'])} ms: an async function in a bare VM",
            ratio=alone / data["monty_ms"],
            target="no slower than Monty",
            met=alone <= data["monty_ms"],
            data=data,
        ),
        Row(
            what=f"a tool call while {AT_ONCE - 1} other executions call tools, {loop_name()}",
            measured=_cost(data, "quickjs_at_once"),
            baseline=f"{_cost(data, 'monty_at_once')}: Monty, {AT_ONCE} processes",
            ratio=beside / data["monty_at_once_ms"],
            target="no slower than Monty",
            met=beside <= data["monty_at_once_ms"],
            data=data,
        ),
    ]


async def _measure(action: Callable[[], Awaitable[None]], at_once: int) -> tuple[float, float]:
    """Returns the milliseconds of one call, and the CPU time that it took in all processes."""
    began, cpu_began = time.perf_counter(), _cpu_seconds()
    await asyncio.gather(*(action() for _ in range(at_once)))
    seconds, cpu_seconds = time.perf_counter() - began, _cpu_seconds() - cpu_began
    return seconds * 1000 / CALLS, cpu_seconds * 1000 / CALLS / at_once


def _cpu_seconds() -> float:
    me = os.getpid()
    return machine.cpu_seconds([me, *machine.descendants(me)])


def _cost(data: dict[str, float], name: str) -> str:
    return f"{number(data[f'{name}_ms'])} ms ({number(data[f'{name}_cpu_ms'])} ms of CPU time)"
