"""Code that waits, what its client hears meanwhile, and whether its processes are gone in the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator

from tests.doors.mcp.houses import IMPORT, House
from tests.processes import PATIENCE, descendants, runs
from tests.waiting import eventually

WAIT = {
    "toolscript": f"{IMPORT}await tools.github.wait(); return 1;",
    "javascript": "await github.wait(); return 1",
}
# A jail has three: itself, its first process, and the runner.
PROCESSES = 3


class Heard:
    """What a client hears of a call's progress."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, str | None]] = []
        self._came = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append((progress, message))
        self._came.set()

    async def until(self, part: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(part in (message or "") for _, message in self.steps):
                self._came.clear()
                await self._came.wait()


class Scripts:
    """The processes below one that are for scripts, those that wait for one included."""

    def __init__(self, pid: int) -> None:
        found = [each for each in descendants(pid) if runs(each, "script.js")]
        self._fds = [os.pidfd_open(each) for each in found]

    def one_ended(self) -> bool:
        """Whether a whole jail is gone since."""
        return len(select.select(self._fds, [], [], 0)[0]) >= PROCESSES

    def __enter__(self) -> Scripts:
        assert len(self._fds) >= PROCESSES
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


@contextlib.asynccontextmanager
async def ended(house: House) -> AsyncIterator[None]:
    """One script is under way, and what happens here ends it and its process."""
    assert in_flight(house, "script") == 1
    with Scripts(os.getpid()) as scripts:
        yield
        await eventually(lambda: scripts.one_ended() and not in_flight(house, "script"))


def in_flight(house: House, engine: str) -> int:
    return house.kernel.pool.stats().in_flight.get(engine, 0)
