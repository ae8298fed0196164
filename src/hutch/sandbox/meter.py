"""A bound on memory where there are no control groups: looks how much a process tree has, tells of excess."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGESIZE")
# A jail has all its processes a moment after its start; later ones are looked for less often.
_SETTLED, _RESCAN = 10, 10
_HAS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Watch:
    """One watched process tree."""

    def __init__(self, meter: Meter, pid: int, limit_bytes: int, on_excess: Callable[[], object]) -> None:
        self.pid = pid
        self.limit_bytes = limit_bytes
        """May be changed at any time."""
        self.exceeded = False
        self.used_bytes = self.peak_bytes = 0
        self._meter = meter
        self._on_excess = on_excess
        self._looks = 0
        self._statm: dict[int, int] = {}

    def stop(self) -> None:
        """No more looks; `exceeded` and `peak_bytes` stay."""
        self._meter._watches.discard(self)
        for pid in list(self._statm):
            self._forget(pid)

    def _look(self) -> None:
        if self._looks < _SETTLED or self._looks % _RESCAN == 0:
            self._find()
        self._looks += 1
        self.used_bytes = used = sum(self._used(pid) for pid in list(self._statm))
        self.peak_bytes = max(self.peak_bytes, used)
        if not self._statm:
            self.stop()
        elif used > self.limit_bytes and not self.exceeded:
            self.exceeded = True
            # Not called here: an exception of the callback's must not end the other watches.
            asyncio.get_running_loop().call_soon(self._on_excess)

    def _find(self) -> None:
        for pid in process_tree(self.pid):
            if pid not in self._statm:
                with suppress(OSError):
                    self._statm[pid] = os.open(f"/proc/{pid}/statm", os.O_RDONLY)

    def _used(self, pid: int) -> int:
        """Anonymous memory. The rest is files, foremost Deno's own binary, that all processes share."""
        try:
            # The open file belongs to this process and to no later one with the same number.
            _, resident, shared, *_ = os.pread(self._statm[pid], 256, 0).split()
        except (OSError, ValueError):
            self._forget(pid)
            return 0
        return (int(resident) - int(shared)) * _PAGE

    def _forget(self, pid: int) -> None:
        with suppress(OSError):
            os.close(self._statm.pop(pid))


class Meter:
    """Looks at all watched processes from one task, which lives only while there are any."""

    def __init__(self, interval: float = 0.02) -> None:
        self._interval = interval
        self._watches: set[Watch] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, pid: int, limit_bytes: int, on_excess: Callable[[], object]) -> Watch:
        """Watch a process with its descendants; `on_excess` is called once, when they have more than allowed.

        Must be called in the running event loop.
        """
        watch = Watch(self, pid, limit_bytes, on_excess)
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
                watch._look()
            await asyncio.sleep(self._interval)


def process_tree(pid: int) -> list[int]:
    """The process and its descendants, also those in pid namespaces below ours."""
    children = _children if _HAS_CHILDREN else _scan()
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        waiting += children(parent)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _scan() -> Callable[[int], list[int]]:
    """The same from every process's own word for its parent, for kernels that do not list children."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as file:
            parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    return lambda pid: parents.get(pid, [])
