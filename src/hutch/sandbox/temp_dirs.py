"""Temporary directories named after their host, so that later hosts can remove the directories of a killed
host.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_TEMP_PREFIX = "hutch-run-"


def make_temp_dir() -> Path:
    """Makes a directory for this user alone. Its path is short, because the length of socket paths is
    limited.
    """
    return Path(tempfile.mkdtemp(prefix=f"{_TEMP_PREFIX}{host_id()}-", dir=_temp_root()))


def remove_stale_temp_dirs() -> None:
    for folder in Path(_temp_root()).glob(f"{_TEMP_PREFIX}*"):
        if has_host_exited(folder.name.removeprefix(_TEMP_PREFIX).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def _temp_root() -> str:
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    return preferred if preferred and os.access(preferred, os.W_OK) else tempfile.gettempdir()


# --- identity of a host ---


@cache
def host_id() -> str:
    """Returns pid namespace, pid and start time of this process. No later process gets the same id."""
    return f"{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}"


# A forked child is another host and gets its own id.
os.register_at_fork(after_in_child=host_id.cache_clear)


def has_host_exited(id: str) -> bool:
    """Returns True if the host with this id has exited. Returns False for a host in another pid namespace,
    because this process cannot see such a host.
    """
    try:
        namespace, pid, start = map(int, id.split("-"))
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
