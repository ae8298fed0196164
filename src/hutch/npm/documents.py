"""The registry's documents of which versions there are, kept so that not all are asked for every time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hutch.settings import MIB

_FILE = "registry.json"
# The largest that there are have a few.
MOST_BYTES = 64 * MIB


class Documents:
    """Files as the installer's own cache has them: below each registry's address, one a package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lend(self, downloads: Path, since: float, without: str | None = None) -> None:
        """Puts those that are not older into an installer's cache, but for one package's own."""
        for name, path in _all(self._folder):
            inside = downloads / path.relative_to(self._folder)
            with contextlib.suppress(OSError):
                if name != without and path.stat().st_mtime >= since:
                    inside.parent.mkdir(parents=True, exist_ok=True)
                    os.link(path, inside)

    def keep(self, downloads: Path) -> None:
        """Takes over what an installer has asked for."""
        for _, path in _all(downloads):
            place = self._folder / path.relative_to(downloads)
            new = place.with_name(f"{_FILE}.{os.getpid()}")
            # It is for speed only: somebody may be throwing them away.
            with contextlib.suppress(OSError):
                status = path.stat()
                lent = status.st_nlink > 1
                if lent or status.st_size > MOST_BYTES:
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                os.link(path, new)
                new.replace(place)

    def forget(self, before: float) -> None:
        """Removes older ones."""
        for _, path in _all(self._folder):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()


def folders(downloads: Path) -> Iterator[tuple[str, Path]]:
    """Every package that an installer knows of, with the folder of its cache that its versions are in."""
    for name, path in _all(downloads):
        yield name, path.parent


def _all(folder: Path) -> list[tuple[str, Path]]:
    found = []
    for path in folder.rglob(_FILE):
        scope, name = path.parts[-3:-1]
        found.append((f"{scope}/{name}" if scope.startswith("@") else name, path))
    return found
