"""What is kept on disk: read-only trees, records of which package is in which, and nothing half-done."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hutch.npm import lockfile, tree, versions
from hutch.npm.documents import Documents
from hutch.npm.installer import Installed, Staging, unpacked
from hutch.npm.lockfile import Lock, Locked
from hutch.npm.records import Record, Records
from hutch.sandbox import identity

# How exactly the time of the last use is kept.
USE_SECONDS = 60.0
# What nobody knows of is left alone as long as somebody may be about to tell.
ORPHAN_SECONDS = 3600.0
# Of all stores in this process, whichever folder they are for.
_NUMBERS = itertools.count(1)


class Package(msgspec.Struct, frozen=True):
    """A package that is ready to be run."""

    name: str
    version: str
    """The exact one."""
    tree: Path
    """A read-only folder: package.json, node_modules/, deno.lock, load.mjs."""
    size: int
    files: int
    cache: Path
    """The folder for what Deno makes of the package's code, if there is any yet."""


class Entry(msgspec.Struct, frozen=True):
    """A line of the list of what there is."""

    name: str
    version: str
    size: int
    files: int
    installed: float
    used: float
    known_as: tuple[str, ...]
    """Ranges and tags that were this version when they were last asked for."""


class Store:
    """The folder. Many processes may share it: what is in it appears, and goes, at once."""

    def __init__(self, root: Path) -> None:
        self.records = Records(root / "packages")
        self.documents = Documents(root / "documents")
        self._trees = root / "trees"
        self._caches = root / "caches"
        self._staging = root / "staging"
        self._packages: dict[tuple[str, str], Package] = {}
        self._touched: dict[tuple[str, str], float] = {}
        self._seeds: dict[Locked, Path] | None = None
        # Throwing away may take seconds, and nobody waits for it.
        self._sweeper = ThreadPoolExecutor(1, "hutch-npm-sweeper")
        # Where we may not look, there is nothing of ours.
        with contextlib.suppress(PermissionError):
            if self._staging.exists():
                self._sweeper.submit(self._sweep)

    def find(self, name: str, version: str) -> Package | None:
        """A package that is there, by its exact version. It counts as used."""
        package = self._packages.get((name, version))
        if package is None:
            record = self.records.find(name, version)
            if record is None:
                return None
            package = self._package(record)
        if not package.tree.is_dir():
            self._packages.pop((name, version), None)
            return None
        self._packages[name, version] = package
        self._touch(name, version)
        return package

    def _package(self, record: Record) -> Package:
        tree, cache = self._trees / record.key, self._caches / record.key
        return Package(record.name, record.version, tree, record.size, record.files, cache)

    def _touch(self, name: str, version: str) -> None:
        now = time.monotonic()
        if now - self._touched.get((name, version), -USE_SECONDS) >= USE_SECONDS:
            self._touched[name, version] = now
            self.records.touch(name, version)

    # --- coming ---

    def stage(self) -> Path:
        """A new folder, whose name says which process to ask about it."""
        folder = self._staging / f"{identity.of_this_host()}-{next(_NUMBERS)}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def shelve(self, staging: Staging, installed: Installed) -> Package:
        """Makes an installation visible."""
        lock = installed.lock
        place = self._trees / installed.key
        place.parent.mkdir(exist_ok=True)
        try:
            staging.tree.rename(place)
        except OSError:
            # The same tree is there already, of a package whose record was lost.
            if not place.is_dir():
                raise
        place.chmod(0o555)
        record = Record(lock.name, lock.version, installed.key, installed.size, installed.files, time.time())
        self.records.add(record)
        if self._seeds is not None:
            self._seeds.update(_seeds(place, lock))
        return self._packages.setdefault((lock.name, lock.version), self._package(record))

    def keep_cache(self, package: Package, folder: Path) -> None:
        """Makes a staged folder visible in the cache, in the place of all that was there. Raises OSError."""
        if not package.tree.is_dir():
            return  # it has been removed
        package.cache.mkdir(parents=True, exist_ok=True)
        place = package.cache / folder.name
        for older in package.cache.glob("*"):
            if older != place:
                self.throw_away(older)
        if not place.exists():
            folder.rename(place)

    def seeds(self) -> Mapping[Locked, Path]:
        """Every package in every tree, so that the next installation need not download it again."""
        if self._seeds is None:
            self._seeds = {}
            for record in self.records.all():
                place = self._trees / record.key
                with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                    self._seeds.update(_seeds(place, lockfile.read(place / "deno.lock", record.name)))
        return self._seeds

    # --- going ---

    def is_whole(self, record: Record) -> bool:
        return (self._trees / record.key).is_dir()

    def entry(self, record: Record) -> Entry:
        resolutions = self.records.resolutions(record.name)
        return Entry(
            record.name,
            record.version,
            record.size,
            record.files,
            record.installed,
            self.records.used(record.name, record.version),
            tuple(text for text, each in resolutions.items() if each.version == record.version),
        )

    def entries(self) -> list[Entry]:
        """All packages, by name and version."""
        found = [self.entry(record) for record in self.records.all() if self.is_whole(record)]
        return sorted(found, key=lambda entry: (entry.name, versions.exact(entry.version) or versions.ZERO))

    def remove(self, record: Record) -> int:
        """Takes a package away. Gives the bytes that this frees."""
        self.records.remove(record)
        self._packages.pop((record.name, record.version), None)
        # Two versions never share a tree: their names are in it.
        freed = self.throw_away(self._caches / record.key)
        return freed + self.throw_away(self._trees / record.key)

    def throw_away(self, folder: Path) -> int:
        """At once for everybody, then file by file. Gives the bytes that this frees."""
        freed = tree.own_bytes(folder)
        place = self.stage() / "trash"
        with contextlib.suppress(FileNotFoundError):
            # Only who may write in a folder may move it.
            if not folder.is_symlink():
                folder.chmod(0o700)
            folder.rename(place)
        self.discard(place.parent)
        return freed

    def discard(self, staged: Path) -> None:
        """Removes a folder that was staged, in the background."""
        self._sweeper.submit(tree.discard, staged)

    def leftovers(self) -> Iterator[Path]:
        """Trees and caches that no package has, and what processes that were killed left behind."""
        yield from self._abandoned()
        keys = {record.key for record in self.records.all()}
        for folder in (*self._trees.glob("*"), *self._caches.glob("*")):
            if folder.name not in keys and _age(folder) > ORPHAN_SECONDS:
                yield folder

    def _abandoned(self) -> Iterator[Path]:
        ours = identity.of_this_host()
        for folder in self._staging.glob("*"):
            owner = folder.name.rpartition("-")[0]
            # Of a container that is no more, nobody can say that its processes are gone.
            if identity.is_gone(owner) or (owner != ours and _age(folder) > ORPHAN_SECONDS):
                yield folder

    def _sweep(self) -> None:
        for folder in self._abandoned():
            tree.discard(folder)

    def close(self) -> None:
        """What was to be thrown away is gone then."""
        self._sweeper.shutdown()


def _seeds(place: Path, lock: Lock) -> dict[Locked, Path]:
    """What nothing promises to be the same elsewhere is not for elsewhere."""
    return {package: unpacked(place, package) for package in lock.packages if package.integrity}


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_ctime
    except OSError:
        return 0.0
