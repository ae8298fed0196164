"""Index of the installed packages. Each package and version has a small file, whose mtime is the time of the
last use.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from hutch.npm import semver

MAX_RESOLUTIONS = 64
_RESOLUTIONS_FILE = "resolutions"
_SUFFIX = ".json"

T = TypeVar("T")


class PackageRecord(msgspec.Struct, frozen=True):
    """Record of an installed package. `key` is the name of its tree."""

    name: str
    version: str
    key: str
    size: int
    files: int
    installed: float


class Resolution(msgspec.Struct, frozen=True):
    """Version that the registry returned for a range or tag. The registry is not asked again before
    `held_until`.
    """

    version: str
    at: float
    held_until: float = 0.0


class PackageIndex:
    """Index of packages and resolutions. Files are replaced atomically, so readers see the old or the new
    content.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str, version: str) -> PackageRecord | None:
        return load_json(self._file(name, version), PackageRecord)

    def add(self, record: PackageRecord) -> None:
        save_file(self._file(record.name, record.version), msgspec.json.encode(record))

    def remove(self, record: PackageRecord) -> None:
        """Removes a record, and the resolutions of ranges and tags to this version."""
        self._file(record.name, record.version).unlink(missing_ok=True)
        others = {
            text: resolution
            for text, resolution in self.resolutions(record.name).items()
            if resolution.version != record.version
        }
        self._save_resolutions(record.name, others)

    def last_used(self, name: str, version: str) -> float:
        """Returns the time of the last use, or 0 if the package is not installed."""
        try:
            return self._file(name, version).stat().st_mtime
        except OSError:
            return 0.0

    def touch(self, name: str, version: str) -> None:
        # The package may have been removed, or the disk may be read-only. Neither prevents the use of the
        # package.
        with contextlib.suppress(OSError):
            os.utime(self._file(name, version))

    def check_readable(self) -> None:
        """Raises OSError if the index cannot be read. The other methods treat an unreadable index as
        empty.
        """
        with contextlib.suppress(FileNotFoundError):
            for folder in self._folder.iterdir():
                for file in folder.glob(f"*{_SUFFIX}"):
                    file.open("rb").close()

    def records(self) -> Iterator[PackageRecord]:
        for file in sorted(self._folder.glob(f"*/*{_SUFFIX}")):
            record = load_json(file, PackageRecord)
            if record is not None and file == self._file(record.name, record.version):
                yield record

    def versions_of(self, name: str) -> Iterator[PackageRecord]:
        for file in sorted(self._package_folder(name).glob(f"*{_SUFFIX}")):
            record = load_json(file, PackageRecord)
            if record is not None and record.name == name and semver.exact_version(record.version):
                yield record

    def versions_in(self, name: str, version_range: semver.VersionRange) -> list[PackageRecord]:
        return [record for record in self.versions_of(name) if version_range.matches(record.version)]

    def resolutions(self, name: str) -> dict[str, Resolution]:
        return load_json(self._package_folder(name) / _RESOLUTIONS_FILE, dict[str, Resolution]) or {}

    def save_resolution(self, name: str, text: str, version: str) -> Resolution:
        resolution = Resolution(version, time.time())
        resolutions = {**self.resolutions(name), text: resolution}
        newest = sorted(resolutions, key=lambda text: resolutions[text].at)[-MAX_RESOLUTIONS:]
        self._save_resolutions(name, {text: resolutions[text] for text in newest})
        return resolution

    def postpone_refresh(self, name: str, text: str, until: float) -> None:
        """Sets the time before which the registry is not asked again about a range or tag."""
        resolutions = self.resolutions(name)
        if text in resolutions:
            resolutions[text] = msgspec.structs.replace(resolutions[text], held_until=until)
            self._save_resolutions(name, resolutions)

    def _save_resolutions(self, name: str, resolutions: dict[str, Resolution]) -> None:
        if resolutions:
            save_file(self._package_folder(name) / _RESOLUTIONS_FILE, msgspec.json.encode(resolutions))
            return
        (self._package_folder(name) / _RESOLUTIONS_FILE).unlink(missing_ok=True)
        # Removing the folder fails if it contains other versions, which is expected.
        with contextlib.suppress(OSError):
            self._package_folder(name).rmdir()

    def _package_folder(self, name: str) -> Path:
        return self._folder / file_name(name)

    def _file(self, name: str, version: str) -> Path:
        return self._package_folder(name) / f"{version}{_SUFFIX}"


def file_name(name: str) -> str:
    """Returns a file name for a package. A plus sign replaces the slash, because no package name contains
    one.
    """
    return name.replace("/", "+")


def load_json(file: Path, kind: type[T]) -> T | None:
    """Decodes a file. Returns None if the file is missing, truncated or invalid; the caller then creates it
    again.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def save_file(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as new:
            new.write(content)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
