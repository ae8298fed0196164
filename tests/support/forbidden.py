"""Makes a path unreadable, even for root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """Makes the path unreadable in the `with` block. If the process is root, it drops its privileges in the
    block, so modules that the block needs must be imported before.
    """
    user, mode = os.geteuid(), path.stat().st_mode
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)
