"""Copies of Deno's shared libraries, in folders as its loader looks for them.

Bubblewrap takes 0.15 ms of every start for each mount: with copies, a jail has one for each folder of
libraries instead of one for each library. The host's own folders hold much else, which is no guest's to see.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make(libraries: tuple[str, ...], place: Path) -> str:
    """The folder below `place` with copies of these libraries, made once for each version of them.

    Each has its own path below that folder. Raises OSError where they cannot be made.
    """
    import hashlib  # not needed when a verdict is kept

    stamps = "\n".join(map(stamp, libraries)).encode()
    folder = place / f"libraries-{hashlib.sha256(stamps).hexdigest()[:16]}"
    if not folder.is_dir():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = tempfile.mkdtemp(dir=place, prefix=".libraries-")
        try:
            for library in libraries:
                os.makedirs(os.path.dirname(made + library), exist_ok=True)
                shutil.copy(library, made + library)
            os.rename(made, folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            # Another host may have been quicker.
            if not folder.is_dir():
                raise
    status = folder.lstat()
    # Guests would run what another user can write.
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    return str(folder)


def folders(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that these are in, without those below another."""
    found = sorted({os.path.dirname(each) for each in libraries})
    return tuple(each for each in found if not any(each.startswith(f"{other}/") for other in found))


def stamp(path: str) -> str:
    """What tells one version of a file from another."""
    try:
        status = os.stat(path)
    except OSError:
        return f"{path}:absent"
    return f"{path}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
