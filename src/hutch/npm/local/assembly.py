"""Assembles the tree of an unpublished package from its files and its dependencies."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hutch.npm import tree
from hutch.npm.install.installer import write_loader
from hutch.npm.local.manifest import LocalManifest
from hutch.npm.lockfile import LAYOUT
from hutch.npm.package_store import LOCAL_PREFIX, Package

SOURCE_FOLDER = "unpublished"
"""Folder of TypeScript sources in a tree. The guest removes it from messages and positions."""


class LocalPackage(msgspec.Struct, frozen=True):
    package: Package
    note: str | None
    """Note for the author about the entry."""


def dependencies_key(dependencies: Mapping[str, str]) -> str:
    """Returns the name of the tree for these dependencies. Packages with equal dependencies share one
    tree.
    """
    listed = msgspec.json.encode(dependencies, order="deterministic")
    content = f"{LAYOUT} {platform.system()} {platform.machine()}\n".encode() + listed
    return LOCAL_PREFIX + hashlib.sha256(content).hexdigest()[:40]


def assemble(target: Path, source: Path, manifest: LocalManifest, dependencies: Path | None) -> None:
    """Moves the files of a package and links its dependencies into a new tree."""
    if dependencies is None:
        target.mkdir()
    else:
        tree.link(dependencies, target)
    name = manifest.spec.name
    (target / "package.json").unlink(missing_ok=True)
    listed = {**manifest.dependencies, name: manifest.spec.version}
    (target / "package.json").write_bytes(msgspec.json.encode({"private": True, "dependencies": listed}))
    installed = target / "node_modules" / name
    installed.parent.mkdir(parents=True, exist_ok=True)
    if manifest.entry is None:
        source.rename(installed)
        write_loader(target, name)
        return
    # Move the sources out of node_modules, because Deno runs no TypeScript there.
    source.rename(target / SOURCE_FOLDER)
    installed.symlink_to(Path(*[".."] * (1 + name.count("/")), SOURCE_FOLDER))
    write_loader(target, f"./{SOURCE_FOLDER}/{manifest.entry}")
