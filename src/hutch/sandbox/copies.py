"""Copies of Deno's shared libraries, in folders as its loader looks for them.

For each mount bubblewrap reads the host's whole mount table anew: with copies, a jail has one for each folder
of libraries instead of one for each library. The host's own folders hold much else, no guest's to see.
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
# After that nobody who starts needs those of another version; who runs with them does without.
_KEPT_SECONDS = 24 * 60 * 60


class Copies:
    """A folder with a copy of each library, below it at the library's own path."""

    def __init__(self, folder: str, libraries: tuple[str, ...]) -> None:
        """Raises OSError where a library is not there."""
        self.folder = folder
        self._folders = _topmost(libraries)
        self._sizes = {folder + each: os.stat(each).st_size for each in libraries}

    @property
    def name(self) -> str:
        return os.path.basename(self.folder)

    @property
    def are_whole(self) -> bool:
        """A cache may be tidied away at any time, and a disk lose what was last written."""
        try:
            return all(os.stat(path).st_size == size for path, size in self._sizes.items())
        except OSError:
            return False

    @property
    def are_ours_alone(self) -> bool:
        """Guests would run what another user can write, and see what else is there."""
        for path in (self.folder, os.path.dirname(self.folder)):
            status = os.lstat(path)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return False
        found = [f"{base}/{name}" for base, _, names in os.walk(self.folder) for name in names]
        return {*found} == {*self._sizes}

    def mounts(self) -> Iterator[tuple[str, str]]:
        """What is to be mounted where."""
        return ((self.folder + each, each) for each in self._folders)


def find(libraries: tuple[str, ...], place: Path, name: str) -> Copies | None:
    """Those of this name that were made below `place`, if they are as they were made."""
    try:
        found = Copies(os.path.abspath(place / name), libraries)
        return found if found.are_ours_alone and found.are_whole else None
    except OSError:
        return None


def make(libraries: tuple[str, ...], place: Path) -> Copies:
    """Those below `place`, made once for each version of the libraries. Raises OSError if they cannot be."""
    name = name_of(libraries)
    if (kept := find(libraries, place, name)) is not None:
        return kept
    import tempfile  # not needed when a verdict is kept

    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = tempfile.mkdtemp(dir=place, prefix=_UNFINISHED)
    try:
        for library in libraries:
            os.makedirs(os.path.dirname(made + library), exist_ok=True)
            shutil.copy(library, made + library)
        _put(made, place / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    _sweep(place, name)
    if (copies := find(libraries, place, name)) is None:
        raise PermissionError(f"{place} is not this user's alone")
    return copies


def name_of(libraries: tuple[str, ...]) -> str:
    """By what is in them: of a machine that is made anew from an image they are the same."""
    import hashlib  # not needed when a verdict is kept

    digest = hashlib.sha256()
    for library in libraries:
        digest.update(os.fsencode(library) + b"\0" + Path(library).read_bytes())
    return _PREFIX + digest.hexdigest()[:16]


def _put(made: str, folder: Path) -> None:
    """In the place of what is damaged, unless another host was quicker."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, f"{made}.old")
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(f"{made}.old", ignore_errors=True)


def _sweep(place: Path, name: str) -> None:
    """Removes what other versions, and hosts that were killed, have left."""
    for path in place.iterdir():
        if path.name.startswith((_PREFIX, _UNFINISHED)) and path.name != name:
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def _topmost(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that these are in, without those below another."""
    found = sorted({os.path.dirname(each) for each in libraries})
    return tuple(each for each in found if not any(each.startswith(f"{other}/") for other in found))
