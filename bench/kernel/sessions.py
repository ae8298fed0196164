"""Turns of stateful sessions, in memory and restored from the store, and forks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable

import hutch
from bench.report import Row, Scale, median, number

MAX_MEMORY_MS = 0.5
MAX_STORED_MS = 5.0
MAX_FORK_MS = 5.0
DATA = "let x = 1; let data = Array.from({length: 300}, (_, i) => ({i, name: 'n' + i}))"


async def sessions(scale: Scale) -> list[Row]:
    held, restored, forks = [], [], []
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        async with hutch.Hutch(home=home) as h:
            session = h.session("bench")
            await session.run(DATA)
            for _ in range(scale.of(300, 40)):
                plain = await _milliseconds(h.run("const x = 1; x + 1"))
                held.append(await _milliseconds(session.run("x + 1")) - plain)
                await session.store()
                restored.append(await _milliseconds(session.run("x + 1")) - plain)
                copy_id = f"copy{len(forks)}"
                forks.append(await _milliseconds(session.fork(copy_id)))
                await h.session(copy_id).delete()
    turn, stored, fork = median(held), median(restored), median(forks)
    return [
        Row(
            what="turn of a session, 300 small objects, in memory and from the store: p50 over an execution",
            measured=f"{number(max(0.0, turn))} ms, {number(max(0.0, stored))} ms",
            target=f"≤ {number(MAX_MEMORY_MS)} ms, ≤ {number(MAX_STORED_MS)} ms",
            met=turn <= MAX_MEMORY_MS and stored <= MAX_STORED_MS,
            data={"turn_ms": turn, "stored_ms": stored},
        ),
        Row(
            what="fork of this session: p50",
            measured=f"{number(fork)} ms",
            target=f"≤ {number(MAX_FORK_MS)} ms",
            met=fork <= MAX_FORK_MS,
            data={"fork_ms": fork},
        ),
    ]


async def _milliseconds(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000
