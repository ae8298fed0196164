"""Passes log lines to a callback of the caller while an execution runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self


class LogRelay:
    """Calls `on_log`, which may be async, with one line after the other.

    An async context manager around the execution. If `on_log` raises, the execution is stopped by `stop`, and
    `finish` raises the exception. The queue needs no limit, because the session limits the logs.
    """

    def __init__(self, on_log: Callable[[str], object], stop: Callable[[], object]) -> None:
        self._on_log = on_log
        self._stop = stop
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._line_count = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._relay())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    def add(self, line: str) -> None:
        self._line_count += 1
        self._lines.put_nowait(line)

    async def finish(self, logs: Sequence[str]) -> None:
        """Passes on the lines that were not passed on before, and waits until all were handled."""
        assert self._task is not None
        for line in logs[self._line_count :]:
            self.add(line)
        self._lines.put_nowait(None)
        await self._task

    async def _relay(self) -> None:
        try:
            while (line := await self._lines.get()) is not None:
                answer = self._on_log(line)
                if inspect.isawaitable(answer):
                    await answer
        except Exception:
            self._stop()
            raise
