"""One at a time for each package: in this process, and among all that share a shelf."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakValueDictionary

WAIT_SECONDS = 0.02


class Turns:
    """Locks by name. Those of a process that was killed are free again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._here: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        here = self._here.get(name)
        if here is None:
            here = self._here[name] = asyncio.Lock()
        path = self._folder / name
        async with here:
            while (handle := _take(path)) is None:  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(WAIT_SECONDS)
            try:
                yield
            finally:
                # While it is ours: who waits for it sees that it is gone, and makes a new one.
                path.unlink(missing_ok=True)
                os.close(handle)


def _take(path: Path) -> int | None:
    """A descriptor that holds the lock, or None while somebody else has it."""
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
