"""Observes running code: progress notifications and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator

from tests.protocols.mcp.harness import IMPORT, McpHarness
from tests.support.processes import TIMEOUT_SECONDS, descendants, is_runner
from tests.support.waiting import eventually

WAIT = {
    "toolscript": f"{IMPORT}await tools.github.wait(); return 1;",
    "javascript": "await tools.github.wait(); return 1",
}
# A jail has three processes: bubblewrap, its init process and the runner.
PROCESSES = 3


class ProgressRecorder:
    """Records the progress notifications of a call."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, str | None]] = []
        self._received = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append((progress, message))
        self._received.set()

    async def until(self, part: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not any(part in (message or "") for _, message in self.steps):
                self._received.clear()
                await self._received.wait()


class ScriptProcesses:
    """The processes of script runners that descend from a process, including prewarmed ones."""

    def __init__(self, pid: int) -> None:
        found = [each for each in descendants(pid) if is_runner(each, "script.js")]
        self._fds = [os.pidfd_open(each) for each in found]

    def one_ended(self) -> bool:
        """Returns whether all processes of at least one jail have ended since this object was created."""
        return len(select.select(self._fds, [], [], 0)[0]) >= PROCESSES

    def __enter__(self) -> ScriptProcesses:
        assert len(self._fds) >= PROCESSES
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


@contextlib.asynccontextmanager
async def ends_script(harness: McpHarness) -> AsyncIterator[None]:
    """Checks that the `async with` block ends the only running script and the script's processes."""
    assert in_flight(harness, "script") == 1
    with ScriptProcesses(os.getpid()) as scripts:
        yield
        await eventually(lambda: scripts.one_ended() and not in_flight(harness, "script"))


def in_flight(harness: McpHarness, engine: str) -> int:
    return harness.kernel.pool.stats().in_flight.get(engine, 0)
