"""What is on the shelf: one small file a package and version, whose time is that of its last use."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from hutch.npm import versions

MOST_RESOLUTIONS = 64
_RESOLUTIONS = "resolutions"
_SUFFIX = ".json"

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True):
    """An installed package. `key` names its tree."""

    name: str
    version: str
    key: str
    size: int
    files: int
    installed: float


class Resolution(msgspec.Struct, frozen=True):
    """What a range or tag was, when the registry said so, and until when it is not to be asked again."""

    version: str
    at: float
    held_until: float = 0.0


class Records:
    """The files. Each is replaced at once, so that whoever reads sees the old one or the new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str, version: str) -> Record | None:
        return _load(self._file(name, version), Record)

    def add(self, record: Record) -> None:
        _save(self._file(record.name, record.version), msgspec.json.encode(record))

    def remove(self, record: Record) -> None:
        """With it go the ranges and tags that were this version."""
        self._file(record.name, record.version).unlink(missing_ok=True)
        kept = {
            text: each
            for text, each in self.resolutions(record.name).items()
            if each.version != record.version
        }
        self._save_resolutions(record.name, kept)

    def used(self, name: str, version: str) -> float:
        """When it was last used; 0 if it is gone."""
        try:
            return self._file(name, version).stat().st_mtime
        except OSError:
            return 0.0

    def touch(self, name: str, version: str) -> None:
        # Removed meanwhile, or on a disk that cannot be written: neither keeps it from being used.
        with contextlib.suppress(OSError):
            os.utime(self._file(name, version))

    def check_readable(self) -> None:
        """Raises OSError where we may not see what is there; nobody else tells that from nothing."""
        with contextlib.suppress(FileNotFoundError):
            for folder in self._folder.iterdir():
                for file in folder.glob(f"*{_SUFFIX}"):
                    file.open("rb").close()

    def all(self) -> Iterator[Record]:
        for file in sorted(self._folder.glob(f"*/*{_SUFFIX}")):
            record = _load(file, Record)
            if record is not None and file == self._file(record.name, record.version):
                yield record

    def versions_of(self, name: str) -> Iterator[Record]:
        for file in sorted(self._of(name).glob(f"*{_SUFFIX}")):
            record = _load(file, Record)
            if record is not None and record.name == name and versions.exact(record.version):
                yield record

    def resolutions(self, name: str) -> dict[str, Resolution]:
        return _load(self._of(name) / _RESOLUTIONS, dict[str, Resolution]) or {}

    def resolve(self, name: str, text: str, version: str) -> Resolution:
        """Remembers what a range or tag is. There may be any number of ranges: the newest are kept."""
        resolution = Resolution(version, time.time())
        known = {**self.resolutions(name), text: resolution}
        newest = sorted(known, key=lambda each: known[each].at)[-MOST_RESOLUTIONS:]
        self._save_resolutions(name, {each: known[each] for each in newest})
        return resolution

    def hold(self, name: str, text: str, until: float) -> None:
        """Leaves a range or tag what it is for a while, although it should be asked for again."""
        known = self.resolutions(name)
        if text in known:
            known[text] = msgspec.structs.replace(known[text], held_until=until)
            self._save_resolutions(name, known)

    def _save_resolutions(self, name: str, resolutions: dict[str, Resolution]) -> None:
        if resolutions:
            _save(self._of(name) / _RESOLUTIONS, msgspec.json.encode(resolutions))
            return
        (self._of(name) / _RESOLUTIONS).unlink(missing_ok=True)
        # Unless other versions are in it.
        with contextlib.suppress(OSError):
            self._of(name).rmdir()

    def _of(self, name: str) -> Path:
        return self._folder / file_name(name)

    def _file(self, name: str, version: str) -> Path:
        return self._of(name) / f"{version}{_SUFFIX}"


def file_name(name: str) -> str:
    """A package's name as that of a file: no name has a + in it."""
    return name.replace("/", "+")


def _load(file: Path, kind: type[T]) -> T | None:
    """None also for a file that is half written or not ours: what it was for is then done again."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _save(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as new:
            new.write(content)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
