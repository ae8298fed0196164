"""Measures how long an event loop does not answer.

A busy machine sometimes delays every process. So only the CPU time that the watched process used during a
stall counts, without the time that its event loop was ready but waited for a processor. A stall may still be
noise. In this case, no stall occurs when `repeat_on_stall` repeats the test.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec

import msgspec
from tests.support import stall_probe

# Upper bound of a stall that a guest, client, upstream or MCP server may cause.
MAX_STALL_SECONDS = 0.05
ATTEMPTS = 3
# CPU time of `_reference_work` on the machine for which MAX_STALL_SECONDS was chosen.
REFERENCE_SECONDS = 0.005
_REFERENCE_TEXT = b"[" + b'{"a":1},' * 2_000 + b"1]"

P = ParamSpec("P")


class StallError(AssertionError):
    """The event loop stalled for too long."""


def repeat_on_stall(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Fails a test only if every attempt stalls. A stall that Hutch causes occurs in every attempt. A stall
    that the machine causes does not.
    """

    @functools.wraps(test)
    async def repeated(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ATTEMPTS - 1):
            try:
                return await test(*args, **kwargs)
            except StallError:
                continue
        return await test(*args, **kwargs)

    return repeated


class LoopStalls:
    """Measures the event loop of this process while its `async with` block runs."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopStalls:
        # Freeze all objects, as `hutch serve` does. Otherwise a garbage collection of all objects of a test
        # process takes half a second. The objects stay frozen after the block, so that later collections are
        # fast, too.
        gc.collect()
        gc.freeze()
        self._watcher = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watcher is not None
        # Give the watcher time to notice a stall at the end of the block.
        await asyncio.sleep(0.005)
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)

    def assert_short(self, scenario: object = "") -> None:
        _assert_short(self.longest, scenario)

    async def _watch(self) -> None:
        pid, loop_thread = os.getpid(), threading.get_native_id()

        def measure() -> tuple[float, float, float]:
            queued = stall_probe.queued_seconds(pid, loop_thread)
            return time.perf_counter(), time.process_time(), queued

        before = measure()
        while True:
            await asyncio.sleep(0.001)
            now = measure()
            wall, used, queued = (later - earlier for later, earlier in zip(now, before, strict=True))
            self.longest = max(self.longest, min(wall - queued, used))
            before = now


class ServerStalls:
    """Measures a server in another process: a probe requests `/health` again and again.

    The probe is a process, too. A thread of the test process could not run while the test encodes a large
    body.
    """

    def __init__(self, pid: int, url: str) -> None:
        self.longest = 0.0
        self._command = [sys.executable, "-S", "-E", stall_probe.__file__, str(pid), url]

    def __enter__(self) -> ServerStalls:
        self._probe = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._probe.stdout is not None
        if self._probe.stdout.readline() != b"ready\n":
            self._probe.communicate()
            raise AssertionError("the server answered no request for /health")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        output, _ = self._probe.communicate(timeout=60)
        if error is None:
            self.longest = json.loads(output)

    def assert_short(self, scenario: object = "") -> None:
        _assert_short(self.longest, scenario)


def _assert_short(longest: float, scenario: object) -> None:
    if longest >= MAX_STALL_SECONDS * _slowness():
        raise StallError(f"the event loop stalled for {longest * 1000:.0f} ms {scenario}".rstrip())


def _slowness() -> float:
    """Returns how many times slower this machine is at present than the machine for which the bound was
    chosen, but at least 1.
    """
    return max(1.0, min(_reference_work() for _ in range(3)) / REFERENCE_SECONDS)


def _reference_work() -> float:
    """Returns the CPU seconds of a fixed amount of decoding and computing."""
    began = time.process_time()
    for _ in range(10):
        msgspec.json.decode(_REFERENCE_TEXT)
    sum(number * number for number in range(50_000))
    return time.process_time() - began
