"""The folder in which Hutch keeps things: what is in the way where it cannot be used, and what to do then."""

from __future__ import annotations

import errno
from os.path import lexists  # a path's own raises where it may not look
from pathlib import Path

REMEDY = "Set HUTCH_HOME to a folder that you may write."

_FORBIDDEN = "is not for this user to read and write"
_WRONG = {
    errno.EEXIST: "is a file, where a folder should be",
    errno.ENOTDIR: "is a file, where a folder should be",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: "is on a file system that cannot be written",
}


def obstacle(error: OSError) -> str | None:
    """What kept a file of the home from being made or read; None where the home is not at fault."""
    wrong = _WRONG.get(error.errno or 0)
    if wrong is None or not isinstance(error.filename, str):
        return None
    file = Path(error.filename)
    # What is below it cannot even be looked at.
    nearest = next(path for path in (file, *file.absolute().parents) if lexists(path))
    return f"{nearest} {wrong}"
