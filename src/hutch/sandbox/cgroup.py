"""Bounds on a jail's memory and tasks by control groups, version 2 or 1, where we may make some."""

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

from hutch.sandbox import identity

Version = Literal["v1", "v2"]

# The pid namespace, pid and start time of the host in the name tell whether its owner still lives.
_NAME = re.compile(r"hutch-\d+-\d+-\d+-\d+")
# Version 2 forbids processes in a group that has bounded children: the host moves to a leaf beside them.
_HOST_LEAF = "hutch.host"
_NEEDED = {"memory", "pids"}
_counter = itertools.count(1)


class Group:
    """One bounded group: in version 2 one directory, in version 1 one in each hierarchy."""

    def __init__(self, version: Version, memory: str, tasks: str, leftover: list[Group]) -> None:
        self.version = version
        self._memory = memory
        self._tasks = tasks
        self._leftover = leftover
        self._limit = 0

    def entry(self) -> tuple[str, ...]:
        """The files that a process of one thread writes "0" to in order to enter."""
        # In version 1 a thread may move itself without the lock that takes cgroup.procs some 10 ms.
        file = "cgroup.procs" if self.version == "v2" else "tasks"
        return tuple(f"{directory}/{file}" for directory in self._directories())

    def set_memory(self, limit: int) -> None:
        """Change the bound. Raises OSError (version 1: EBUSY) when more than that is in use and stays so."""
        if self.version == "v2":
            _write(f"{self._memory}/memory.max", limit)
        else:
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            # Memory with swap may at no moment be bounded lower than memory.
            for name in reversed(names) if limit > self._limit > 0 else names:
                if name == names[0] or os.path.exists(f"{self._memory}/{name}"):
                    _write(f"{self._memory}/{name}", limit)
        self._limit = limit

    def set_tasks(self, limit: int) -> None:
        _write(f"{self._tasks}/pids.max", limit)

    def memory_used(self) -> int:
        """Bytes in use, with the page cache that the group was the first to fill."""
        name = "memory.current" if self.version == "v2" else "memory.usage_in_bytes"
        return int(_read(f"{self._memory}/{name}"))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed because the bound on memory was reached."""
        file = "memory.events" if self.version == "v2" else "memory.oom_control"
        return self._event(self._memory, file, "oom_kill")

    def refused_tasks(self) -> int:
        """How many times a process or thread was refused because the bound on tasks was reached."""
        return self._event(self._tasks, "pids.events", "max")

    def processes(self) -> list[int]:
        found: set[int] = set()
        for directory in self._directories():
            with suppress(OSError):
                found.update(map(int, _read(f"{directory}/cgroup.procs").split()))
        # Zero stands for a process that is outside of our pid namespace.
        return sorted(found - {0})

    def kill(self) -> None:
        """SIGKILL to every process in the group. They may still be dying when this returns."""
        with suppress(OSError):
            if os.path.exists(f"{self._memory}/cgroup.kill"):
                _write(f"{self._memory}/cgroup.kill", 1)
                return
        seen: set[int] = set()
        # Until a look shows nobody new: what a process forked before it died is found by the next one.
        while new := set(self.processes()) - seen:
            for pid in new:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            seen |= new

    def remove(self) -> bool:
        """Remove the group. False while a process in it is still dying: the next `create` tries again."""
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


class Controller:
    """Makes groups below the group that the host is in."""

    def __init__(self, version: Version, memory: Path, tasks: Path) -> None:
        self.version: Version = version
        self._memory = memory
        self._tasks = tasks
        self._leftover: list[Group] = []

    def create(self, memory_bytes: int, tasks: int) -> Group:
        """A new group. Raises OSError when it cannot be made; then nothing of it stays."""
        self._retry()
        name = f"hutch-{identity.of_this_host()}-{next(_counter)}"
        group = self._group(name)
        try:
            for directory in group._directories():
                os.mkdir(directory)
            group.set_memory(memory_bytes)
            group.set_tasks(tasks)
            if self.version == "v2":
                self._bound_more(self._memory / name)
        except OSError:
            group.remove()
            raise
        return group

    def close(self, timeout: float = 1.0) -> None:
        """Remove the groups that could not be removed while their last processes were dying."""
        end = time.monotonic() + timeout
        while self._leftover and time.monotonic() < end:
            self._retry()
            time.sleep(0.002 if self._leftover else 0)

    def sweep(self) -> int:
        """Kill and remove the groups of hosts that are gone; how many there were.

        Also those beside our own group: a host that is started again may be in another session's.
        """
        stale = {
            path for base in {self._memory, self._tasks} for path in _named(base) if _is_stale(path.name)
        }
        for path in stale:
            group = Group(self.version, str(path), str(path), self._leftover)
            group.kill()
            group.remove()
        return len({path.name for path in stale})

    def _retry(self) -> None:
        self._leftover[:] = [group for group in self._leftover if not group.remove()]

    def _group(self, name: str) -> Group:
        return Group(self.version, str(self._memory / name), str(self._tasks / name), self._leftover)

    def _bound_more(self, directory: Path) -> None:
        """No swap, and the jail dies as a whole; neither file is there in every kernel."""
        for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
            if (directory / name).exists():
                _write(str(directory / name), value)


class _Hierarchy(NamedTuple):
    kind: str
    controllers: set[str]
    root: str
    mount: Path


def find(proc: Path = Path("/proc/self")) -> Controller | None:
    """The controller of the group that this process is in, or None where its groups are not ours to make."""
    try:
        memberships = dict(_memberships((proc / "cgroup").read_text()))
        hierarchies = _hierarchies((proc / "mountinfo").read_text())
    except OSError:
        return None
    for candidate in (_unified(hierarchies, memberships), _separate(hierarchies, memberships)):
        if candidate is not None and _works(candidate):
            return candidate
    return None


def _unified(hierarchies: list[_Hierarchy], memberships: dict[str, str]) -> Controller | None:
    for hierarchy in hierarchies:
        if hierarchy.kind == "cgroup2" and "" in memberships:
            base = _own(hierarchy, memberships[""])
            base = base.parent if base.name == _HOST_LEAF else base
            if os.access(base, os.W_OK) and _delegate(base, is_root=base == hierarchy.mount):
                return Controller("v2", base, base)
    return None


def _separate(hierarchies: list[_Hierarchy], memberships: dict[str, str]) -> Controller | None:
    found: dict[str, Path] = {}
    for hierarchy in hierarchies:
        for name in hierarchy.controllers & _NEEDED & memberships.keys():
            found.setdefault(name, _own(hierarchy, memberships[name]))
    if found.keys() < _NEEDED or not all(os.access(base, os.W_OK) for base in found.values()):
        return None
    return Controller("v1", found["memory"], found["pids"])


def _delegate(base: Path, *, is_root: bool) -> bool:
    """Have the bounds on memory and tasks for the groups below `base`."""
    try:
        if _has_needed(base, "cgroup.subtree_control"):
            return True
        if not _has_needed(base, "cgroup.controllers") or not _is_ours(base, is_root):
            return False
        try:
            _write(f"{base}/cgroup.subtree_control", "+memory +pids")
        except OSError as error:
            if error.errno != errno.EBUSY:
                return False
            _evacuate(base)
        return True
    except OSError:
        return False


def _has_needed(base: Path, file: str) -> bool:
    return _NEEDED.issubset(_read(f"{base}/{file}").split())


def _is_ours(base: Path, is_root: bool) -> bool:
    """Whether we may reorder `base`: systemd takes back the bounds in what it has not delegated."""
    if base.suffix in {".service", ".scope", ".slice"}:
        return any(_attribute(base, name) == b"1" for name in ("user.delegate", "trusted.delegate"))
    return is_root or _read(f"{base}/cgroup.procs").split() == [str(os.getpid())]


def _evacuate(base: Path) -> None:
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


def _works(controller: Controller) -> bool:
    try:
        return controller.create(64 << 20, 64).remove()
    except OSError:
        return False


def _memberships(text: str) -> list[tuple[str, str]]:
    """Controller and path of each line of /proc/self/cgroup; version 2 has the empty name."""
    rows = (line.split(":", 2) for line in text.splitlines())
    return [(name, path) for _, names, path in rows for name in names.split(",")]


def _hierarchies(mountinfo: str) -> list[_Hierarchy]:
    found = []
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        fields, tail = place.split(), kind.split()
        if len(fields) > 4 and len(tail) > 2 and tail[0] in ("cgroup", "cgroup2"):
            mount = Path(fields[4].replace("\\040", " "))
            found.append(_Hierarchy(tail[0], set(tail[2].split(",")), fields[3], mount))
    return found


def _own(hierarchy: _Hierarchy, path: str) -> Path:
    """Where the group `path` is seen: a container has only its own part of the hierarchy mounted."""
    inside = os.path.relpath(path, hierarchy.root)
    return hierarchy.mount if inside.startswith("..") else hierarchy.mount / inside


def _named(base: Path) -> list[Path]:
    """The groups with names like ours in `base` and beside it."""
    found: list[Path] = []
    for place in {base, *_entries(base.parent)}:
        found += [path for path in _entries(place) if _NAME.fullmatch(path.name)]
    return found


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_stale(name: str) -> bool:
    return identity.is_gone(name.removeprefix("hutch-").rpartition("-")[0])


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:
        return None


def _read(path: str) -> str:
    # A text file of Python's takes longer to open than this to read.
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
