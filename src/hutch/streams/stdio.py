"""Takes over stdin and stdout for a protocol that uses them as its transport."""

from __future__ import annotations

import os


def take_stdio() -> tuple[int, int]:
    """Returns duplicates of stdin and stdout that only the caller knows.

    All other code in this process and its children reads /dev/null and prints to stderr, so that stray reads
    and prints cannot corrupt the protocol.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    return stdin, stdout
