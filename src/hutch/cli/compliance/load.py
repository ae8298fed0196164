"""Many executions at once, and how long `/health` takes meanwhile."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import msgspec

from hutch.cli.compliance.answer import Answer
from hutch.cli.compliance.outcome import NoAnswer

AT_ONCE = 8
# A quick executor gets more than one round, a slow one no new ones after a while.
ROUNDS = 5
ROUNDS_SECONDS = 5.0
# Between two looks at /health, and how many there are at least.
PAUSE_SECONDS = 0.01
LOOKS = 20

Ask = Callable[[], Awaitable[Answer]]


class Load(msgspec.Struct, frozen=True):
    """What was seen."""

    executions: list[Answer | NoAnswer]
    health: list[Answer | NoAnswer]

    def p99(self) -> float:
        """Of the seconds that /health took when it answered."""
        took = sorted(each.seconds for each in self.health if isinstance(each, Answer))
        return took[math.ceil(0.99 * len(took)) - 1]


async def fire(execute: Ask, health: Ask) -> Load:
    """Executes from several sides at once and looks at /health until all is answered."""
    seen = Load([], [])
    last = time.monotonic() + ROUNDS_SECONDS

    async def side() -> None:
        for _ in range(ROUNDS):
            seen.executions.append(await _outcome(execute))
            if time.monotonic() > last:
                return

    async with asyncio.TaskGroup() as group:
        sides = [group.create_task(side()) for _ in range(AT_ONCE)]
        # Let them begin.
        await asyncio.sleep(0)
        while len(seen.health) < LOOKS or not all(task.done() for task in sides):
            seen.health.append(await _outcome(health))
            await asyncio.sleep(PAUSE_SECONDS)
    return seen


async def _outcome(ask: Ask) -> Answer | NoAnswer:
    try:
        return await ask()
    except NoAnswer as error:
        return error
