"""Copies Deno's shared libraries into the cache, so that a jail needs fewer mounts.

For each mount, bubblewrap reads the host's whole mount table again. With copies, a jail has one mount per
library folder instead of one per library. The host's own library folders are not mounted, because they
contain many other files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "libraries-"
_UNFINISHED = ".libraries-"
# Folders with other versions of the libraries are removed at this age. A running host that used such a folder
# mounts the libraries directly from then on.
_MAX_AGE_SECONDS = 24 * 60 * 60


class LibraryCopies:
    """Folder with a copy of each library, each at its original path below the folder."""

    def __init__(self, folder: str, libraries: tuple[str, ...]) -> None:
        self.folder = folder
        self._folders = _top_folders(libraries)
        self._sizes = {folder + path: os.stat(path).st_size for path in libraries}

    @property
    def name(self) -> str:
        return os.path.basename(self.folder)

    @property
    def are_complete(self) -> bool:
        """True if every copy has its full size. A copy may be incomplete because a cache was cleaned or a
        crash lost recent writes.
        """
        try:
            return all(os.stat(path).st_size == size for path, size in self._sizes.items())
        except OSError:
            return False

    @property
    def are_private(self) -> bool:
        """True if only this user can write to the folder, and the folder has no other files. Guests see and
        run its files.
        """
        for path in (self.folder, os.path.dirname(self.folder)):
            status = os.lstat(path)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return False
        files = [f"{base}/{name}" for base, _, names in os.walk(self.folder) for name in names]
        return {*files} == {*self._sizes}

    def mounts(self) -> Iterator[tuple[str, str]]:
        return ((self.folder + target, target) for target in self._folders)


def find_copies(libraries: tuple[str, ...], parent: Path, name: str) -> LibraryCopies | None:
    """Returns the existing copies with this name, or None if they are incomplete or not private."""
    try:
        copies = LibraryCopies(os.path.abspath(parent / name), libraries)
        return copies if copies.are_private and copies.are_complete else None
    except OSError:
        return None


def make_copies(libraries: tuple[str, ...], parent: Path) -> LibraryCopies:
    """Returns the copies of this version of the libraries, and makes them if necessary. Raises OSError."""
    name = copies_name(libraries)
    if (existing := find_copies(libraries, parent, name)) is not None:
        return existing
    # Import tempfile here, because a start with a cached self-test result does not need it.
    import tempfile

    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = tempfile.mkdtemp(dir=parent, prefix=_UNFINISHED)
    try:
        for library in libraries:
            os.makedirs(os.path.dirname(staging + library), exist_ok=True)
            shutil.copy(library, staging + library)
        _publish(staging, parent / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _remove_old(parent, name)
    if (copies := find_copies(libraries, parent, name)) is None:
        raise PermissionError(f"{parent} is not private to this user")
    return copies


def copies_name(libraries: tuple[str, ...]) -> str:
    """Returns the folder name. It depends only on paths and contents, so it stays the same in a machine
    image.
    """
    import hashlib  # imported here: not needed if the self-test result is cached

    digest = hashlib.sha256()
    for library in libraries:
        digest.update(os.fsencode(library) + b"\0" + Path(library).read_bytes())
    return _PREFIX + digest.hexdigest()[:16]


def _publish(staging: str, folder: Path) -> None:
    """Moves finished copies into place and replaces damaged ones. Does nothing if another host was faster."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, f"{staging}.old")
    try:
        os.rename(staging, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(f"{staging}.old", ignore_errors=True)


def _remove_old(parent: Path, name: str) -> None:
    for path in parent.iterdir():
        if path.name.startswith((_PREFIX, _UNFINISHED)) and path.name != name:
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _MAX_AGE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def _top_folders(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the folders that contain the libraries. Leaves out a folder that is inside another one."""
    folders = sorted({os.path.dirname(path) for path in libraries})
    return tuple(path for path in folders if not any(path.startswith(f"{other}/") for other in folders))
