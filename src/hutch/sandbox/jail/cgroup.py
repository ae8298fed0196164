"""Limits memory and tasks of a jail with control groups, version 2 or 1."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from hutch.sandbox.temp_dirs import has_host_exited, host_id

Version = Literal["v1", "v2"]

# Matches the name of a group. The name contains the pid namespace, the pid and the start time of the host
# that created the group. They tell whether the host still runs.
_NAME = re.compile(r"hutch-\d+-\d+-\d+-\d+")
# Version 2 forbids processes in a group whose children have limits. So the host moves to its own leaf group,
# beside the groups of the jails.
_HOST_LEAF = "hutch.host"
_NEEDED = {"memory", "pids"}
_counter = itertools.count(1)


class Cgroup:
    """A group with limits. In version 2 it is one directory, in version 1 one directory in each hierarchy."""

    def __init__(self, version: Version, memory: str, tasks: str, leftover: list[Cgroup]) -> None:
        self.version = version
        self._memory = memory
        self._tasks = tasks
        self._leftover = leftover
        self._limit = 0

    def entry_files(self) -> tuple[str, ...]:
        """Returns the files to which a single-threaded process writes "0" to enter the group."""
        # In version 1, a lock makes writes to cgroup.procs take some 10 ms. A thread that moves itself does
        # not need the lock.
        file = "cgroup.procs" if self.version == "v2" else "tasks"
        return tuple(f"{directory}/{file}" for directory in self._directories())

    def set_memory(self, limit: int) -> None:
        """Sets the memory limit. Raises OSError (version 1: EBUSY) if more memory is in use and cannot be
        reclaimed.
        """
        if self.version == "v2":
            _write(f"{self._memory}/memory.max", limit)
        else:
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            # The kernel refuses a limit for memory plus swap that is below the limit for memory. So the limit
            # for memory plus swap is raised first and lowered last.
            for name in reversed(names) if limit > self._limit > 0 else names:
                if name == names[0] or os.path.exists(f"{self._memory}/{name}"):
                    _write(f"{self._memory}/{name}", limit)
        self._limit = limit

    def set_tasks(self, limit: int) -> None:
        _write(f"{self._tasks}/pids.max", limit)

    def memory_used(self) -> int:
        """Returns the bytes in use, including page cache that this group was the first to fill."""
        name = "memory.current" if self.version == "v2" else "memory.usage_in_bytes"
        return int(_read(f"{self._memory}/{name}"))

    def oom_kills(self) -> int:
        """Returns the number of processes that the kernel killed because of the memory limit."""
        file = "memory.events" if self.version == "v2" else "memory.oom_control"
        return self._event(self._memory, file, "oom_kill")

    def refused_tasks(self) -> int:
        """Returns the number of processes and threads that could not be created because of the task limit."""
        return self._event(self._tasks, "pids.events", "max")

    def processes(self) -> list[int]:
        pids: set[int] = set()
        for directory in self._directories():
            with suppress(OSError):
                pids.update(map(int, _read(f"{directory}/cgroup.procs").split()))
        # Leave out 0, which cgroup.procs contains for a process outside of this pid namespace.
        return sorted(pids - {0})

    def kill(self) -> None:
        """Sends SIGKILL to every process in the group. The processes may still be dying when this returns."""
        with suppress(OSError):
            if os.path.exists(f"{self._memory}/cgroup.kill"):
                _write(f"{self._memory}/cgroup.kill", 1)
                return
        seen: set[int] = set()
        # Repeat until there are no new pids: a process may fork before it dies.
        while new := set(self.processes()) - seen:
            for pid in new:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            seen |= new

    def remove(self) -> bool:
        """Removes the group. Returns False while a process in the group is still dying. In that case, the
        next `create` tries again.
        """
        done = sum(map(_remove, self._directories())) == len(self._directories())
        if not done and self not in self._leftover:
            self._leftover.append(self)
        return done

    def _directories(self) -> tuple[str, ...]:
        return (self._memory,) if self.version == "v2" else (self._memory, self._tasks)

    def _event(self, directory: str, file: str, key: str) -> int:
        try:
            pairs = (line.split() for line in _read(f"{directory}/{file}").splitlines())
            return next((int(pair[1]) for pair in pairs if pair[0] == key), 0)
        except OSError:
            return 0


class CgroupController:
    def __init__(self, version: Version, memory: Path, tasks: Path) -> None:
        self.version: Version = version
        self._memory = memory
        self._tasks = tasks
        self._leftover: list[Cgroup] = []

    def create(self, memory_bytes: int, tasks: int) -> Cgroup:
        """Creates a group with limits. If this fails, removes the group and raises OSError."""
        self._retry_removals()
        name = f"hutch-{host_id()}-{next(_counter)}"
        group = self._group(name)
        try:
            for directory in group._directories():
                os.mkdir(directory)
            group.set_memory(memory_bytes)
            group.set_tasks(tasks)
            if self.version == "v2":
                self._set_optional_limits(self._memory / name)
        except OSError:
            group.remove()
            raise
        return group

    def close(self, timeout: float = 1.0) -> None:
        end = time.monotonic() + timeout
        while self._leftover and time.monotonic() < end:
            self._retry_removals()
            time.sleep(0.002 if self._leftover else 0)

    def sweep(self) -> int:
        """Kills and removes the groups of hosts that have exited, including groups beside this host's group.
        Returns the number of groups.
        """
        stale = {
            path
            for base in {self._memory, self._tasks}
            for path in _hutch_groups(base)
            if _is_stale(path.name)
        }
        for path in stale:
            group = Cgroup(self.version, str(path), str(path), self._leftover)
            group.kill()
            group.remove()
        return len({path.name for path in stale})

    def _retry_removals(self) -> None:
        self._leftover[:] = [group for group in self._leftover if not group.remove()]

    def _group(self, name: str) -> Cgroup:
        return Cgroup(self.version, str(self._memory / name), str(self._tasks / name), self._leftover)

    def _set_optional_limits(self, directory: Path) -> None:
        """Disables swap, and lets the OOM killer end the whole jail, if the kernel has the files for this."""
        for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
            if (directory / name).exists():
                _write(str(directory / name), value)


class _Hierarchy(NamedTuple):
    kind: str
    controllers: set[str]
    root: str
    mount: Path


def find_controller(proc: Path = Path("/proc/self")) -> CgroupController | None:
    """Returns the controller for this process's group, or None if this process may not create groups."""
    try:
        memberships = dict(_memberships((proc / "cgroup").read_text()))
        hierarchies = _hierarchies((proc / "mountinfo").read_text())
    except OSError:
        return None
    for candidate in (_find_v2(hierarchies, memberships), _find_v1(hierarchies, memberships)):
        if candidate is not None and _can_create(candidate):
            return candidate
    return None


def _find_v2(hierarchies: list[_Hierarchy], memberships: dict[str, str]) -> CgroupController | None:
    for hierarchy in hierarchies:
        if hierarchy.kind == "cgroup2" and "" in memberships:
            base = _mounted_path(hierarchy, memberships[""])
            base = base.parent if base.name == _HOST_LEAF else base
            if os.access(base, os.W_OK) and _delegate(base, is_root=base == hierarchy.mount):
                return CgroupController("v2", base, base)
    return None


def _find_v1(hierarchies: list[_Hierarchy], memberships: dict[str, str]) -> CgroupController | None:
    paths: dict[str, Path] = {}
    for hierarchy in hierarchies:
        for name in hierarchy.controllers & _NEEDED & memberships.keys():
            paths.setdefault(name, _mounted_path(hierarchy, memberships[name]))
    if paths.keys() < _NEEDED or not all(os.access(base, os.W_OK) for base in paths.values()):
        return None
    return CgroupController("v1", paths["memory"], paths["pids"])


def _delegate(base: Path, *, is_root: bool) -> bool:
    try:
        if _has_needed(base, "cgroup.subtree_control"):
            return True
        if not _has_needed(base, "cgroup.controllers") or not _may_reorganise(base, is_root):
            return False
        try:
            _write(f"{base}/cgroup.subtree_control", "+memory +pids")
        except OSError as error:
            if error.errno != errno.EBUSY:
                return False
            _move_to_leaf(base)
        return True
    except OSError:
        return False


def _has_needed(base: Path, file: str) -> bool:
    return _NEEDED.issubset(_read(f"{base}/{file}").split())


def _may_reorganise(base: Path, is_root: bool) -> bool:
    """Returns True if this process may enable controllers in `base` and move processes there. systemd resets
    the limits in groups that it has not delegated.
    """
    if base.suffix in {".service", ".scope", ".slice"}:
        return any(_attribute(base, name) == b"1" for name in ("user.delegate", "trusted.delegate"))
    return is_root or _read(f"{base}/cgroup.procs").split() == [str(os.getpid())]


def _move_to_leaf(base: Path) -> None:
    leaf = base / _HOST_LEAF
    leaf.mkdir(exist_ok=True)
    moved: list[str] = []
    try:
        for pid in _read(f"{base}/cgroup.procs").split():
            with suppress(ProcessLookupError):
                _write(f"{leaf}/cgroup.procs", pid)
                moved.append(pid)
        _write(f"{base}/cgroup.subtree_control", "+memory +pids")
    except OSError:
        for pid in moved:
            with suppress(OSError):
                _write(f"{base}/cgroup.procs", pid)
        _remove(str(leaf))
        raise


def _can_create(controller: CgroupController) -> bool:
    try:
        return controller.create(64 << 20, 64).remove()
    except OSError:
        return False


def _memberships(text: str) -> list[tuple[str, str]]:
    """Returns controller and path of each line of /proc/self/cgroup. The name of the controller is empty in
    version 2.
    """
    rows = (line.split(":", 2) for line in text.splitlines())
    return [(name, path) for _, names, path in rows for name in names.split(",")]


def _hierarchies(mountinfo: str) -> list[_Hierarchy]:
    hierarchies = []
    for line in mountinfo.splitlines():
        location, _, kind = line.partition(" - ")
        fields, tail = location.split(), kind.split()
        if len(fields) > 4 and len(tail) > 2 and tail[0] in ("cgroup", "cgroup2"):
            mount = Path(fields[4].replace("\\040", " "))
            hierarchies.append(_Hierarchy(tail[0], set(tail[2].split(",")), fields[3], mount))
    return hierarchies


def _mounted_path(hierarchy: _Hierarchy, path: str) -> Path:
    """Returns the directory of a group. A container has only its own part of the hierarchy mounted."""
    inside = os.path.relpath(path, hierarchy.root)
    return hierarchy.mount if inside.startswith("..") else hierarchy.mount / inside


def _hutch_groups(base: Path) -> list[Path]:
    """Returns the groups with Hutch's names in `base` and in the groups beside `base`."""
    groups: list[Path] = []
    for parent in {base, *_entries(base.parent)}:
        groups += [path for path in _entries(parent) if _NAME.fullmatch(path.name)]
    return groups


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_stale(name: str) -> bool:
    return has_host_exited(name.removeprefix("hutch-").rpartition("-")[0])


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:
        return None


def _read(path: str) -> str:
    # Use os.open, because `open` alone takes longer than this whole function.
    handle = os.open(path, os.O_RDONLY)
    try:
        read = b""
        while data := os.read(handle, 65536):
            read += data
        return read.decode()
    finally:
        os.close(handle)


def _write(path: str, value: int | str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, str(value).encode())
    finally:
        os.close(handle)


def _remove(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
