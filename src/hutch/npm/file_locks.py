"""Named locks that work between the tasks of this process and between all processes that share a folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakValueDictionary

POLL_SECONDS = 0.02


class FileLocks:
    """Named locks. If a process is killed, its locks are released."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def acquire(self, name: str) -> AsyncIterator[None]:
        local_lock = self._local_locks.get(name)
        if local_lock is None:
            local_lock = self._local_locks[name] = asyncio.Lock()
        path = self._folder / name
        async with local_lock:
            while (handle := _try_lock(path)) is None:  # noqa: ASYNC110 - other processes send no event
                await asyncio.sleep(POLL_SECONDS)
            try:
                yield
            finally:
                # Unlink while holding the lock, so that a waiting process notices that the file is gone and
                # creates a new one.
                path.unlink(missing_ok=True)
                os.close(handle)


def _try_lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock, or None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
