"""Passes log lines to a callback of the caller while an execution runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from hutch.session.run import Result, RunHandle, log_listener


async def relay_logs(
    on_log: Callable[[str], object], execute: Callable[[RunHandle], Awaitable[Result]]
) -> Result:
    """Runs an execution and calls `on_log`, which may be async, with one line after the other.

    Returns when all lines were handled. If `on_log` raises, the execution is stopped and the exception is
    raised.
    """
    # The queue needs no limit, because the session limits the logs.
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    run = RunHandle(listeners=[log_listener(lines.put_nowait)])

    async def relay() -> None:
        try:
            while (line := await lines.get()) is not None:
                answer = on_log(line)
                if inspect.isawaitable(answer):
                    await answer
        except Exception:
            run.stop()
            raise

    task = asyncio.get_running_loop().create_task(relay())
    try:
        result = await execute(run)
        lines.put_nowait(None)
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})
    return result
