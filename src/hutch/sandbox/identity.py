"""Which host made a thing that may outlive it: a name that no later process can have by chance."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def of_this_host() -> str:
    """The pid namespace, the pid in it, and when that process started."""
    return f"{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}"


# What was forked off is another host.
os.register_at_fork(after_in_child=of_this_host.cache_clear)


def is_gone(identity: str) -> bool:
    """Whether that host is over. Of hosts in other pid namespaces we cannot know: they are not."""
    try:
        namespace, pid, start = map(int, identity.split("-"))
    except ValueError:
        return False
    return namespace == _pid_namespace() and _start_time(pid) != start


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_time(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
