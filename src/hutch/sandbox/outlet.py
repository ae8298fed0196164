"""What a guest's process prints: taken in as it comes, so that the process never has to wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_READ_BYTES = 65_536
# Before others have their turn.
_READS_AT_ONCE = 64


class Outlet:
    """The reading end of a pipe, whose other end a process gets as stdout, stderr or both."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._fd, self.for_process = os.pipe()
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """The process has its end."""
        os.close(self.for_process)
        self._loop.add_reader(self._fd, self.drain)

    def drain(self) -> None:
        """Takes what has been printed so far."""
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except (BlockingIOError, OSError):
                return
            if not data:
                self._loop.remove_reader(self._fd)
                return
            self._take(data)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        # Another file may get this number now.
        self._fd = -1
