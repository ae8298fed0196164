"""What an installation consists of: every package with its exact version and its integrity."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import msgspec

from hutch.npm import names, versions

# Counted up when trees are laid out otherwise: then all are installed anew.
LAYOUT = 1
MOST_BYTES = 32 * 1024 * 1024


class Locked(msgspec.Struct, frozen=True):
    """One package of an installation."""

    name: str
    version: str
    integrity: str | None
    bin: bool = False
    """Whether there are programs in it."""


class _Entry(msgspec.Struct):
    integrity: str | None = None
    bin: bool = False


class _Document(msgspec.Struct):
    specifiers: dict[str, str]
    npm: dict[str, _Entry]


class Lock(msgspec.Struct, frozen=True):
    """A lock file: the package that it is for at its exact version, and nothing of the registry's address."""

    name: str
    version: str
    packages: tuple[Locked, ...]
    text: bytes
    complete: bool
    """Whether every package has an integrity, so that the text alone says what will be installed."""

    @property
    def key(self) -> str:
        """The name of the tree that it gives; native parts differ by machine."""
        seen = f"{LAYOUT} {platform.system()} {platform.machine()}\n".encode() + self.text
        return hashlib.sha256(seen).hexdigest()[:40]


def read(path: Path, name: str) -> Lock:
    """The lock file that the installer wrote for one package. Raises ValueError if it makes no sense."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError("it is too large")
    raw = path.read_bytes()
    document = msgspec.json.decode(raw, type=_Document)
    asked = next((each for each in document.specifiers if each.startswith(f"npm:{name}@")), "")
    resolved = document.specifiers.get(asked, "")
    version = resolved.partition("_")[0]
    if versions.exact(version) is None or len(version) > names.LONGEST_VERSION:
        raise ValueError("its version is none")
    packages = tuple(
        Locked(*_split(identity), integrity=entry.integrity, bin=entry.bin)
        for identity, entry in document.npm.items()
    )
    if not all(names.is_name(each.name) and versions.exact(each.version) for each in packages):
        raise ValueError("it has a package that can be none")
    if not any(each.name == name and each.version == version for each in packages):
        raise ValueError("it is not for this package")
    specifiers = {key: value for key, value in document.specifiers.items() if key != asked}
    specifiers[f"npm:{name}@{version}"] = resolved
    text = _rewrite(msgspec.json.decode(raw), specifiers)
    return Lock(name, version, packages, text, all(each.integrity for each in packages))


def _split(identity: str) -> tuple[str, str]:
    """`@scope/name@1.2.3_peer@4.5.6`: the peers that it was resolved with are no part of the version."""
    at = identity.find("@", 1)
    return identity[:at], identity[at + 1 :].partition("_")[0]


def _rewrite(document: dict[str, Any], specifiers: dict[str, str]) -> bytes:
    """In one form, whichever range or tag was asked for, and from wherever it came."""
    packages = {
        identity: {key: value for key, value in entry.items() if key != "tarball"}
        for identity, entry in document["npm"].items()
    }
    kept = {
        "version": document.get("version"),
        "specifiers": specifiers,
        "npm": packages,
        "workspace": {"packageJson": {"dependencies": sorted(specifiers)}},
    }
    return msgspec.json.format(msgspec.json.encode(kept, order="deterministic"), indent=2)
