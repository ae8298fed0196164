"""Remembers packages that exceeded a limit, so that they are not downloaded again at every call."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from hutch.npm.install.process import InstallLimits
from hutch.npm.package_index import load_json, save_file
from hutch.npm.package_spec import PackageSpec
from hutch.npm.tree import TreeLimit

MAX_REFUSALS = 256
# After this time the package is tried again, because its dependencies may have become smaller.
REFUSAL_SECONDS = 86_400.0


class PackageRefusal(msgspec.Struct, frozen=True):
    """Records that a package at an exact version exceeded `limit`. `maximum` was the value of the limit at
    that time.
    """

    name: str
    version: str
    limit: TreeLimit
    maximum: int
    at: float


class Refusals:
    """The last refusals, in a file that several processes may share. If two processes write at once, one
    refusal may be lost.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def find(self, spec: PackageSpec, limits: InstallLimits) -> TreeLimit | None:
        """Returns the limit that a package at an exact version is known to exceed."""
        now = time.time()
        for refusal in self._load():
            if (refusal.name, refusal.version) == (spec.name, spec.version):
                is_recent = 0 <= now - refusal.at < REFUSAL_SECONDS
                is_exceeded = limits.value(refusal.limit) <= refusal.maximum
                return refusal.limit if is_recent and is_exceeded else None
        return None

    def add(self, spec: PackageSpec, limit: TreeLimit, limits: InstallLimits) -> None:
        """Adds a refusal. If the package has one that is still valid, does nothing, so that repeated calls do
        not extend it.
        """
        if self.find(spec, limits) is not None:
            return
        new = PackageRefusal(spec.name, spec.version, limit, limits.value(limit), time.time())
        others = [each for each in self._load() if (each.name, each.version) != (new.name, new.version)]
        # If the folder is read-only, the next call downloads the package again.
        with contextlib.suppress(OSError):
            save_file(self._file, msgspec.json.encode([*others, new][-MAX_REFUSALS:]))

    def _load(self) -> list[PackageRefusal]:
        return load_json(self._file, list[PackageRefusal]) or []
