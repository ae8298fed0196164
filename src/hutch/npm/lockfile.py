"""Reads Deno's lock file: every package of an installation with its exact version and integrity."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import msgspec

from hutch.npm.package_spec import MAX_VERSION_LENGTH, is_package_name
from hutch.npm.semver import exact_version

# Increase this number when the layout of trees changes. All packages are then installed again.
LAYOUT = 1
MAX_LOCK_BYTES = 32 * 1024 * 1024


class LockedPackage(msgspec.Struct, frozen=True):
    name: str
    version: str
    integrity: str | None
    bin: bool = False


class _LockEntry(msgspec.Struct):
    integrity: str | None = None
    bin: bool = False


class _LockDocument(msgspec.Struct):
    specifiers: dict[str, str]
    npm: dict[str, _LockEntry]


class LockFile(msgspec.Struct, frozen=True):
    """Lock file of one package at an exact version, without the address of the registry."""

    name: str
    version: str
    packages: tuple[LockedPackage, ...]
    text: bytes
    is_complete: bool
    """True if every package has an integrity, so that the text alone determines the content."""

    @property
    def key(self) -> str:
        """Name of the tree. It depends on the type of machine, because native code differs."""
        content = f"{LAYOUT} {platform.system()} {platform.machine()}\n".encode() + self.text
        return hashlib.sha256(content).hexdigest()[:40]


class DependencyLock(msgspec.Struct, frozen=True):
    """Lock file of the dependencies of an unpublished package, without registry addresses."""

    packages: tuple[LockedPackage, ...]
    text: bytes


def read_lock_file(path: Path, name: str) -> LockFile:
    """Reads the lock file that the installer wrote for one package. Raises ValueError if it is invalid."""
    raw, document, packages = _read(path)
    specifier = next((text for text in document.specifiers if text.startswith(f"npm:{name}@")), "")
    resolved = document.specifiers.get(specifier, "")
    version = resolved.partition("_")[0]
    if exact_version(version) is None or len(version) > MAX_VERSION_LENGTH:
        raise ValueError("the version is invalid")
    if not any(package.name == name and package.version == version for package in packages):
        raise ValueError("the file is for another package")
    specifiers = {key: value for key, value in document.specifiers.items() if key != specifier}
    specifiers[f"npm:{name}@{version}"] = resolved
    text = _normalize(msgspec.json.decode(raw), specifiers)
    return LockFile(name, version, packages, text, all(package.integrity for package in packages))


def read_dependency_lock(path: Path) -> DependencyLock:
    """Reads the lock file that the installer wrote for a list of dependencies. Raises ValueError if it is
    invalid.
    """
    raw, document, packages = _read(path)
    return DependencyLock(packages, _normalize(msgspec.json.decode(raw), document.specifiers))


def _read(path: Path) -> tuple[bytes, _LockDocument, tuple[LockedPackage, ...]]:
    if path.stat().st_size > MAX_LOCK_BYTES:
        raise ValueError("the file is too large")
    raw = path.read_bytes()
    document = msgspec.json.decode(raw, type=_LockDocument)
    packages = tuple(
        LockedPackage(*_split_identity(identity), integrity=entry.integrity, bin=entry.bin)
        for identity, entry in document.npm.items()
    )
    if not all(is_package_name(package.name) and exact_version(package.version) for package in packages):
        raise ValueError("a package name or version is invalid")
    return raw, document, packages


def _split_identity(identity: str) -> tuple[str, str]:
    """Splits an identity such as `@scope/name@1.2.3_peer@4.5.6` into name and version. The peers after the
    underscore are dropped.
    """
    at = identity.find("@", 1)
    return identity[:at], identity[at + 1 :].partition("_")[0]


def _normalize(document: dict[str, Any], specifiers: dict[str, str]) -> bytes:
    """Removes the parts that do not affect the installed content: the requested range or tag, and the
    download addresses.
    """
    packages = {
        identity: {key: value for key, value in entry.items() if key != "tarball"}
        for identity, entry in document["npm"].items()
    }
    normalized = {
        "version": document.get("version"),
        "specifiers": specifiers,
        "npm": packages,
        "workspace": {"packageJson": {"dependencies": sorted(specifiers)}},
    }
    return msgspec.json.format(msgspec.json.encode(normalized, order="deterministic"), indent=2)
