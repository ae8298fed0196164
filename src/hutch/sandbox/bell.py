"""Tells a runner that something was said to it before it sleeps: a file as long as there were lines.

Who sleeps in the kernel is woken late and then finds its caches cold, which takes longer than many a tool.
So a runner that waits for an answer, on a core that nobody else wants, watches this file for a moment. It is
a hint and no more: what is said comes over the channel, and whoever misses the hint hears it there.
"""

from __future__ import annotations

import contextlib
import os


class Bell:
    """The host's end; the runner gets one that it can only read."""

    def __init__(self) -> None:
        # It has a length and no content, so it takes no memory however long it is. As an object it is also
        # closed when nobody has it any more.
        self._file = open(os.memfd_create("hutch-bell"), "r+b", buffering=0)  # noqa: SIM115

    def for_process(self) -> int:
        """A descriptor for the runner, to be closed by the caller once it has it."""
        return os.open(f"/proc/self/fd/{self._file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)

    def ring(self, lines: int) -> None:
        """As many lines were said by now."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), lines)

    def close(self) -> None:
        self._file.close()
