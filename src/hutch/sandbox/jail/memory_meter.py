"""Enforces memory limits without control groups, by sampling process trees."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGESIZE")
# The first _EARLY_SAMPLES samples search for new processes, because a jail starts most of its processes
# early. After that, only one in _RESCAN_EVERY samples does.
_EARLY_SAMPLES, _RESCAN_EVERY = 10, 10
_HAS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class MemoryWatch:
    def __init__(
        self, meter: MemoryMeter, pid: int, limit_bytes: int, on_excess: Callable[[], object]
    ) -> None:
        self.pid = pid
        self.limit_bytes = limit_bytes
        """Memory limit. May be changed at any time."""
        self.exceeded = False
        self.used_bytes = self.peak_bytes = 0
        self._meter = meter
        self._on_excess = on_excess
        self._samples = 0
        self._statm_fds: dict[int, int] = {}

    def stop(self) -> None:
        self._meter._watches.discard(self)
        for pid in list(self._statm_fds):
            self._forget(pid)

    def _sample(self) -> None:
        if self._samples < _EARLY_SAMPLES or self._samples % _RESCAN_EVERY == 0:
            self._find_processes()
        self._samples += 1
        self.used_bytes = used = sum(self._anonymous_bytes(pid) for pid in list(self._statm_fds))
        self.peak_bytes = max(self.peak_bytes, used)
        if not self._statm_fds:
            self.stop()
        elif used > self.limit_bytes and not self.exceeded:
            self.exceeded = True
            # Do not call the callback directly, because an exception in it must not end the watches of other
            # processes.
            asyncio.get_running_loop().call_soon(self._on_excess)

    def _find_processes(self) -> None:
        for pid in process_tree(self.pid):
            if pid not in self._statm_fds:
                with suppress(OSError):
                    self._statm_fds[pid] = os.open(f"/proc/{pid}/statm", os.O_RDONLY)

    def _anonymous_bytes(self, pid: int) -> int:
        """Returns the memory of a process. Mapped files are not counted, because most of them are parts of
        Deno's binary, which all processes share.
        """
        try:
            # Read the file that is already open. Opening it by pid could open the file of another process
            # that got the same pid.
            _, resident, shared, *_ = os.pread(self._statm_fds[pid], 256, 0).split()
        except (OSError, ValueError):
            self._forget(pid)
            return 0
        return (int(resident) - int(shared)) * _PAGE

    def _forget(self, pid: int) -> None:
        with suppress(OSError):
            os.close(self._statm_fds.pop(pid))


class MemoryMeter:
    """Samples all watched process trees in one task, which runs only while something is watched."""

    def __init__(self, interval: float = 0.02) -> None:
        self._interval = interval
        self._watches: set[MemoryWatch] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, pid: int, limit_bytes: int, on_excess: Callable[[], object]) -> MemoryWatch:
        """Watches a process and its descendants. Calls `on_excess` once, when they exceed the limit."""
        watch = MemoryWatch(self, pid, limit_bytes, on_excess)
        self._watches.add(watch)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="hutch-meter")
        return watch

    def close(self) -> None:
        for watch in list(self._watches):
            watch.stop()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._watches:
            for watch in list(self._watches):
                watch._sample()
            await asyncio.sleep(self._interval)


def process_tree(pid: int) -> list[int]:
    """Returns the process and its descendants, including those in nested pid namespaces."""
    children = _children if _HAS_CHILDREN else _children_from_stat()
    pids, pending = [], [pid]
    while pending:
        parent = pending.pop()
        pids.append(parent)
        pending += children(parent)
    return pids


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
    return pids


def _children_from_stat() -> Callable[[int], list[int]]:
    """Returns a function that lists the children of a process. It uses the parent pids in /proc/*/stat, for
    kernels that do not list children.
    """
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as file:
            parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    return lambda pid: parents.get(pid, [])
