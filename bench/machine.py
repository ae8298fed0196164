"""Describes the machine, and measures the memory of processes."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from hutch._version import __version__
from hutch.sandbox import deno_binary

BUSY_LOAD = 1.0
MB = 1e6


def describe() -> dict[str, object]:
    """Returns the facts that every figure depends on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hutch": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "deno": deno_binary.deno_version(deno_binary.find_deno()),
        "load_average": round(os.getloadavg()[0], 2),
    }


def sentence(machine: dict[str, object]) -> str:
    return (
        f"{machine['date']}, Hutch {machine['hutch']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gb']} GB, Linux {machine['kernel']}, Python {machine['python']}, "
        f"Deno {machine['deno']}, load average {machine['load_average']} at the start."
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1]
    return platform.machine()


def descendants(pid: int, without: Collection[int] = ()) -> list[int]:
    """Returns the descendants of `pid`, also in other namespaces. Leaves out the processes in `without` and
    their descendants.
    """
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in without:
                found.append(child)
                waiting.append(child)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def cpu_seconds(pids: Collection[int]) -> float:
    """Returns the CPU time that the living threads of these processes have used. On a busy machine, CPU time
    varies less than elapsed time.
    """
    return sum(_thread_nanoseconds(pid) for pid in pids) / 1e9


def _thread_nanoseconds(pid: int) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total


def memory(pids: Collection[int]) -> float:
    """Returns the memory of these processes in MB. If the kernel reports it, memory that several processes
    share is divided between them.
    """
    return sum(_pss(pid) for pid in pids) / MB


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        if found:
            return int(found[1]) * 1024
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
