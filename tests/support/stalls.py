"""Measures how long an event loop does not answer.

A machine that runs other tests delays every process now and then. A stall therefore counts only as far as
the watched process used CPU time meanwhile: a loop that is blocked by our own work does, a loop that the
scheduler keeps waiting does not.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

# Upper bound of a stall that a guest, client, upstream or MCP server may cause.
MAX_STALL_SECONDS = 0.05


class LoopStalls:
    """Measures the event loop of this process while its `async with` block runs."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopStalls:
        self._watcher = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watcher is not None
        # Let the watcher see a stall that ends together with the block.
        await asyncio.sleep(0.005)
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)

    async def _watch(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now, used = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, min(now - wall, used - cpu))
            wall, cpu = now, used


class ServerStalls:
    """Measures a server in another process: requests `/health` again and again from a thread."""

    def __init__(self, pid: int, url: str) -> None:
        self.longest = 0.0
        self.requests = 0
        self._pid = pid
        self._host = urlsplit(url).netloc
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ServerStalls:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            assert self.requests, "the server answered no request for /health"

    def _watch(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        while not self._stop.is_set():
            began, used = time.perf_counter(), self._cpu_seconds()
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            self.requests += 1
            stall = min(time.perf_counter() - began, self._cpu_seconds() - used)
            self.longest = max(self.longest, stall)
            self._stop.wait(0.002)
        connection.close()

    def _cpu_seconds(self) -> float:
        total = 0
        for task in Path(f"/proc/{self._pid}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                # The thread ended.
                continue
        return total / 1e9
