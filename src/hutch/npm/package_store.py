"""Package store on disk: read-only trees, an index that maps packages to trees, and staging folders."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hutch.npm import lockfile, semver, tree
from hutch.npm.install.installer import InstalledTree, StagingFolder, unpacked_path
from hutch.npm.lockfile import LockedPackage
from hutch.npm.package_index import PackageIndex, PackageRecord
from hutch.npm.registry import MetadataCache
from hutch.sandbox import temp_dirs

# Precision of the recorded time of the last use.
TOUCH_INTERVAL_SECONDS = 60.0
# Folders without a record are kept this long, because another process may be about to add the record.
ORPHAN_SECONDS = 3600.0
# Name prefix of trees that contain the dependencies of an unpublished package.
LOCAL_PREFIX = "local-"
# Shared by all stores of this process, so that staging folders never get the same name.
_STAGING_NUMBERS = itertools.count(1)


class Package(msgspec.Struct, frozen=True):
    name: str
    version: str
    tree: Path
    """Read-only folder with package.json, node_modules/, deno.lock and load.mjs."""
    size: int
    files: int
    cache: Path
    """Folder to which Deno writes the compiled code of the package. The folder may not exist."""
    is_typescript: bool = False
    """True if the package is not published and Deno runs its TypeScript source."""


class PackageInfo(msgspec.Struct, frozen=True):
    name: str
    version: str
    size: int
    files: int
    installed: float
    used: float
    known_as: tuple[str, ...]
    """Ranges and tags that resolved to this version when the registry was last asked."""


class PackageStore:
    """Installed packages in a folder that many processes may share. Everything in the folder appears and
    disappears atomically.
    """

    def __init__(self, root: Path) -> None:
        self.index = PackageIndex(root / "packages")
        self.metadata = MetadataCache(root / "documents")
        self._trees = root / "trees"
        self._caches = root / "caches"
        self._staging = root / "staging"
        self._packages: dict[tuple[str, str], Package] = {}
        self._touched: dict[tuple[str, str], float] = {}
        self._unpacked: dict[LockedPackage, Path] | None = None
        # Thread for deletions, which may take seconds.
        self._sweeper = ThreadPoolExecutor(1, "hutch-npm-sweeper")
        # Ignore a folder that this process may not read, because it cannot contain leftovers of this user's
        # processes.
        with contextlib.suppress(PermissionError):
            if self._staging.exists():
                self._sweeper.submit(self._sweep)

    def find(self, name: str, version: str) -> Package | None:
        """Returns an installed package by its exact version and marks it as used."""
        package = self._packages.get((name, version))
        if package is None:
            record = self.index.find(name, version)
            if record is None:
                return None
            package = self._package(record)
        if not package.tree.is_dir():
            self._packages.pop((name, version), None)
            return None
        self._packages[name, version] = package
        self._touch(name, version)
        return package

    def _package(self, record: PackageRecord) -> Package:
        tree, cache = self._trees / record.key, self._caches / record.key
        return Package(record.name, record.version, tree, record.size, record.files, cache)

    def _touch(self, name: str, version: str) -> None:
        now = time.monotonic()
        if now - self._touched.get((name, version), -TOUCH_INTERVAL_SECONDS) >= TOUCH_INTERVAL_SECONDS:
            self._touched[name, version] = now
            self.index.touch(name, version)

    def stage(self) -> Path:
        """Creates a staging folder. Its name contains the id of this process."""
        folder = self._staging / f"{temp_dirs.host_id()}-{next(_STAGING_NUMBERS)}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def add(self, staging: StagingFolder, installed: InstalledTree) -> Package:
        lock = installed.lock
        target = self._trees / installed.key
        target.parent.mkdir(exist_ok=True)
        try:
            staging.tree.rename(target)
        except OSError:
            # Keep a tree that already exists: only its record was lost.
            if not target.is_dir():
                raise
        target.chmod(0o555)
        record = PackageRecord(
            lock.name, lock.version, installed.key, installed.size, installed.files, time.time()
        )
        self.index.add(record)
        if self._unpacked is not None:
            self._unpacked.update(_reusable_packages(target, lock.packages))
        return self._packages.setdefault((lock.name, lock.version), self._package(record))

    def find_dependencies(self, key: str) -> Path | None:
        """Returns the tree with the dependencies of an unpublished package, and marks it as used. Such a tree
        has no record, so `prune` removes it as a leftover an hour after its last use.
        """
        folder = self._trees / key
        if not folder.is_dir():
            return None
        # If the folder is read-only, its time cannot be set. Its age then counts from the installation.
        with contextlib.suppress(OSError):
            os.utime(folder)
        return folder

    def add_dependencies(self, staging: StagingFolder, key: str) -> Path:
        target = self._trees / key
        target.parent.mkdir(exist_ok=True)
        self.delete(target)
        staging.tree.rename(target)
        target.chmod(0o555)
        self._unpacked = None
        return target

    def replace_cache(self, package: Package, folder: Path) -> None:
        """Makes a staged folder the package's cache and deletes older caches. Raises OSError."""
        if not package.tree.is_dir():
            return  # the package was removed meanwhile
        package.cache.mkdir(parents=True, exist_ok=True)
        target = package.cache / folder.name
        for older in package.cache.glob("*"):
            if older != target:
                self.delete(older)
        if not target.exists():
            folder.rename(target)

    def unpacked_packages(self) -> Mapping[LockedPackage, Path]:
        """Returns every package in every tree, so that the next installation does not download these
        again.
        """
        if self._unpacked is None:
            self._unpacked = {}
            for record in self.index.records():
                tree_folder = self._trees / record.key
                with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                    lock = lockfile.read_lock_file(tree_folder / "deno.lock", record.name)
                    self._unpacked.update(_reusable_packages(tree_folder, lock.packages))
            for tree_folder in self._trees.glob(f"{LOCAL_PREFIX}*"):
                with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                    packages = lockfile.read_dependency_lock(tree_folder / "deno.lock").packages
                    self._unpacked.update(_reusable_packages(tree_folder, packages))
        return self._unpacked

    def has_tree(self, record: PackageRecord) -> bool:
        return (self._trees / record.key).is_dir()

    def package_info(self, record: PackageRecord) -> PackageInfo:
        resolutions = self.index.resolutions(record.name)
        return PackageInfo(
            record.name,
            record.version,
            record.size,
            record.files,
            record.installed,
            self.index.last_used(record.name, record.version),
            tuple(text for text, resolution in resolutions.items() if resolution.version == record.version),
        )

    def package_infos(self) -> list[PackageInfo]:
        infos = [self.package_info(record) for record in self.index.records() if self.has_tree(record)]
        return sorted(infos, key=lambda entry: (entry.name, semver.sort_key(entry.version)))

    def remove(self, record: PackageRecord) -> int:
        """Removes a package. Returns the number of bytes that this frees."""
        self.index.remove(record)
        self._packages.pop((record.name, record.version), None)
        # Two versions never share a tree, because the key depends on name and version.
        freed = self.delete(self._caches / record.key)
        return freed + self.delete(self._trees / record.key)

    def delete(self, folder: Path) -> int:
        """Renames a folder and deletes it in the background. Returns the number of bytes that this frees."""
        freed = tree.exclusive_bytes(folder)
        target = self.stage() / "trash"
        with contextlib.suppress(FileNotFoundError):
            # Make the folder writable, because renaming a folder requires write permission on it.
            if not folder.is_symlink():
                folder.chmod(0o700)
            folder.rename(target)
        self.discard(target.parent)
        return freed

    def discard(self, staged: Path) -> None:
        self._sweeper.submit(tree.discard, staged)

    def leftovers(self) -> Iterator[Path]:
        """Yields trees and caches without a record, and staging folders of processes that were killed."""
        yield from self._abandoned_staging()
        keys = {record.key for record in self.index.records()}
        for folder in (*self._trees.glob("*"), *self._caches.glob("*")):
            if folder.name not in keys and _age(folder) > ORPHAN_SECONDS:
                yield folder

    def _abandoned_staging(self) -> Iterator[Path]:
        this_process = temp_dirs.host_id()
        for folder in self._staging.glob("*"):
            owner = folder.name.rpartition("-")[0]
            # Processes of another container cannot be checked, so the age of their folders decides.
            if temp_dirs.has_host_exited(owner) or (owner != this_process and _age(folder) > ORPHAN_SECONDS):
                yield folder

    def _sweep(self) -> None:
        for folder in self._abandoned_staging():
            tree.discard(folder)

    def close(self) -> None:
        """Waits until all deletions have finished."""
        self._sweeper.shutdown()


def _reusable_packages(tree_folder: Path, packages: Sequence[LockedPackage]) -> dict[LockedPackage, Path]:
    """Returns the packages of a tree that another tree can reuse. Packages without integrity may differ, so
    they are omitted.
    """
    return {package: unpacked_path(tree_folder, package) for package in packages if package.integrity}


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_ctime
    except OSError:
        return 0.0
