"""Lowers and restores the CPU priority of a guest's processes."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path

BACKGROUND_NICE = 10
"""Difference of the nice value. A process in the background gets a ninth of the CPU time of another process
that competes for the same core, and all of it if no other process does.
"""
_MAX_NICE = 19
_CAP_SYS_NICE = 23


@cache
def can_restore() -> bool:
    """Returns True if this process may raise a priority that it has lowered. This requires the capability
    CAP_SYS_NICE, or a limit that allows it (`LimitNICE=0` in a systemd unit).
    """
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - os.getpriority(os.PRIO_PROCESS, 0):
        return True
    with suppress(OSError, StopIteration, ValueError):
        status = Path("/proc/self/status").read_text()
        effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False


def set_background(pid: int, in_background: bool) -> bool:
    """Changes the priority of all processes in the process group of `pid`. Returns False if this is not
    permitted, see `can_restore`.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if in_background:
        nice = min(_MAX_NICE, nice + BACKGROUND_NICE)
    with suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group == os.getpgrp():
            return True
        try:
            os.setpriority(os.PRIO_PGRP, group, nice)
        except PermissionError:
            return False
        _set_autogroup_nice(pid, nice)
    return True


def _set_autogroup_nice(pid: int, nice: int) -> None:
    """Changes the priority of the process's session. Kernels that schedule sessions as groups ignore the nice
    values of processes in different sessions, see sched(7). Failures are ignored, because not all processes
    are in such a group, and only the superuser may write more than ten times per second.
    """
    with suppress(OSError):
        handle = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(handle, str(nice).encode())
        finally:
            os.close(handle)
