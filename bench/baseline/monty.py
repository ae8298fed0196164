"""Baseline: Monty (pydantic-monty), a Python interpreter in worker processes without a jail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from pydantic_monty import AsyncMonty


class MontyPool:
    """Pool of Monty's workers. Every evaluation has a new session, like every execution of Hutch."""

    def __init__(self, max_processes: int | None = None) -> None:
        """`max_processes` is also the maximum number of open sessions. None means Monty's default, one
        process per core.
        """
        self._pool = AsyncMonty(max_processes=max_processes)

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

    async def evaluate(self) -> None:
        async with self._pool.checkout() as session:
            result = await session.feed_run("1 + 1")
        if result != 2:
            raise RuntimeError(f"1 + 1 gave {result!r}")

    async def call(self, function: Callable[[int], Awaitable[int]], count: int) -> None:
        """Makes `count` sequential calls of an async host function that returns its argument plus one."""
        code = f"n = 0\nwhile n < {count}:\n    n = await following(n)\nn"
        async with self._pool.checkout(limits={"max_suspensions": 10 * count}) as session:
            result = await session.feed_run(code, external_lookup={"following": function})
        if result != count:
            raise RuntimeError(f"{count} calls gave {result!r}")
