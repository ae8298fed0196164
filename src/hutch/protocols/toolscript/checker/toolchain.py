"""Installs the pinned TypeScript compiler below HUTCH_HOME and prepares its type libraries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import PackageNotFound, SandboxUnavailable
from hutch.npm import tree
from hutch.npm.file_locks import FileLocks
from hutch.sandbox import deno_binary, temp_dirs
from hutch.settings import MIB, Settings

if TYPE_CHECKING:
    from hutch.npm.install.installer import StagingFolder
    from hutch.npm.lockfile import LockedPackage
    from hutch.npm.package_spec import PackageSpec

logger = logging.getLogger("hutch.toolscript")

OnMessage = Callable[[str], None]

COMPILER_VERSION = "7.0.2"
# The npm package with the compiler and the integrity hash of its archive, by machine type. Run the tests
# before changing the version, because the compiler's API protocol (see tsc_process.py) is not stable.
COMPILER_PACKAGES = {
    "x86_64": (
        "@typescript/typescript-linux-x64",
        "sha512-EYdf2cNg7rgCWJnxCdJ+F3V39O8ihb37eHAu1LK8oAFizgTQbPOK7zHHXbPt8rX24COqODXeI3sIf0fCXG7H/A==",
    ),
    "aarch64": (
        "@typescript/typescript-linux-arm64",
        "sha512-Qh4eU4/y3yDjnfjjyPYihMj5/ODIlmt+Bzu17OI+fiSRDW57QmU5SiN63exPRNJPKUzcc1INa1NXdrJ+MqHjUQ==",
    ),
}
_MAX_BYTES = 128 * MIB
_MAX_FILES = 1_000
_staging_numbers = itertools.count(1)

LANGUAGE_LIB = "esnext"
_LIB_REFERENCE = re.compile(r'^/// <reference lib="([^"]+)"', re.M)
_MODULE_SYNTAX = re.compile(r"^(?:export|import)\b", re.M)
# Matches strings, which are kept, and comments, which are removed. Declarations contain no regular
# expressions, so nothing else can look like a string or a comment.
_STRING_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|//[^\n]*|/\*.*?\*/""", re.S
)
_INDENTATION = re.compile(r"[ \t]*\n\s*")
# Declarations of names that Deno takes from its bundled Node types, which the native compiler cannot read.
# Node modules and timers have the type `any`, because a timer is a number in the web API and an object in
# Node. Each timer function has two overloads, because TypeScript lets callers omit a void argument only if no
# other arguments are expected.
NODE_TYPES = """
declare module "node:*";
declare namespace NodeJS { type Timeout = any; }
declare var process: any, Buffer: any, global: typeof globalThis;
declare function setTimeout(action: (_: void) => void, delay?: number): any;
declare function setTimeout<A extends any[]>(action: (...args: A) => void, delay?: number, ...args: A): any;
declare function setInterval(action: (_: void) => void, delay?: number): any;
declare function setInterval<A extends any[]>(action: (...args: A) => void, delay?: number, ...args: A): any;
declare function setImmediate(action: (_: void) => void): any;
declare function setImmediate<A extends any[]>(action: (...args: A) => void, ...args: A): any;
declare function clearTimeout(timer?: any): void;
declare function clearInterval(timer?: any): void;
declare function clearImmediate(immediate?: any): void;
"""
# Exports of the module "toolscript" that scripts can use without an import.
GLOBAL_TYPES = """
declare const tools: typeof import("toolscript").tools;
declare const ToolError: typeof import("toolscript").ToolError;
declare type ToolError = import("toolscript").ToolError;
"""


class Compiler(msgspec.Struct, frozen=True):
    """An installed compiler and the type declarations that every script may use."""

    folder: Path
    ambient_files: tuple[str, ...]
    """Names of the files in `folder` that declare the globals of ECMAScript and Deno."""

    @property
    def program(self) -> Path:
        return self.folder / "tsc"


class Toolchain:
    """The folder below HUTCH_HOME for compilers and for temporary files of checks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.home_path.absolute() / "typescript"
        self._locks = FileLocks(self._root / "locks")

    async def compiler(self, on_message: OnMessage | None = None) -> Compiler:
        """Returns the compiler. Downloads it if necessary. Raises PackageNotFound."""
        await asyncio.to_thread(self._sweep)
        folder = self._root / COMPILER_VERSION
        if not folder.is_dir():
            await self._fetch(folder, on_message or (lambda _: None))
        deno = await asyncio.to_thread(_deno_types_file, folder, deno_binary.find_deno())
        return Compiler(folder, (*language_files(folder), deno))

    def stage(self) -> Path:
        """Creates a staging folder. Its name identifies this process, so that `_sweep` can remove it later.
        Raises OSError.
        """
        folder = self._root / "staging" / f"{temp_dirs.host_id()}-{next(_staging_numbers)}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def stage_anywhere(self) -> Path:
        """Creates a staging folder, or a temporary folder if HUTCH_HOME is read-only."""
        try:
            return self.stage()
        except OSError:
            return temp_dirs.make_temp_dir()

    def _sweep(self) -> None:
        """Removes the staging folders of processes that no longer exist."""
        for folder in (self._root / "staging").glob("*"):
            if temp_dirs.has_host_exited(folder.name.rpartition("-")[0]):
                tree.discard(folder)

    async def _fetch(self, folder: Path, on_message: OnMessage) -> None:
        from hutch.npm.package_spec import PackageSpec

        product = f"TypeScript {COMPILER_VERSION}"
        package = COMPILER_PACKAGES.get(platform.machine())
        if package is None:
            raise PackageNotFound(f"There is no {product} compiler for {platform.machine()}.")
        if self._settings.offline:
            raise PackageNotFound(f"The {product} compiler is not installed, and Hutch is offline.")
        seconds = self._settings.install_seconds
        try:
            async with asyncio.timeout(seconds), self._locks.acquire(COMPILER_VERSION):
                # Check again, because another process may have installed the compiler meanwhile.
                if not folder.is_dir():  # noqa: ASYNC240
                    await self._install(
                        folder, PackageSpec(package[0], COMPILER_VERSION), package[1], on_message
                    )
        except TimeoutError:
            message = f"The {product} compiler could not be downloaded within {seconds:g} s."
            raise PackageNotFound(message, retryable=True) from None
        except OSError as error:
            raise PackageNotFound(f"The {product} compiler could not be stored: {error.strerror}.") from None

    async def _install(self, folder: Path, spec: PackageSpec, integrity: str, on_message: OnMessage) -> None:
        from hutch.npm.install.installer import Installer, StagingFolder

        # Use separate limits, because the operator's limits are for tool packages, not for the compiler.
        limits = {"max_package_bytes": _MAX_BYTES, "max_package_files": _MAX_FILES}
        staging = StagingFolder(self.stage())
        try:
            installer = Installer(msgspec.structs.replace(self._settings, **limits))
            lock = await installer.resolve(staging, spec, on_message)
            # Checking the hash in the lock file is enough, because the installer compares the downloaded
            # archive with the lock file.
            if [package.integrity for package in lock.packages] != [integrity]:
                raise PackageNotFound(
                    f"The registry's package of TypeScript {COMPILER_VERSION} does not have the pinned hash."
                )
            await installer.install(staging, spec, lock, {}, on_message)
            await asyncio.to_thread(_assemble, staging, lock.packages[0], folder)
        finally:
            await asyncio.to_thread(tree.discard, staging.folder)


def _assemble(staging: StagingFolder, package: LockedPackage, folder: Path) -> None:
    """Copies the needed files of the package to a new folder, then moves that folder to its final place."""
    from hutch.npm.install.installer import unpacked_path

    library = unpacked_path(staging.tree, package) / "lib"
    target = staging.folder / "compiler"
    target.mkdir()
    shutil.copyfile(library / "tsc", target / "tsc")
    (target / "tsc").chmod(0o755)
    # Copy this file, because tsc does not start without it.
    shutil.copyfile(library / "lib.d.ts", target / "lib.d.ts")
    merge_language_types(library, target)
    target.rename(folder)


# --- type libraries ---


def language_files(folder: Path) -> tuple[str, ...]:
    """Returns the names of the files that `merge_language_types` has written."""
    return tuple(sorted(path.name for path in folder.glob("es*.d.ts")))


def merge_language_types(library: Path, folder: Path) -> None:
    """Writes the ECMAScript types. All global declarations go into one file, and each module into its own."""
    parts: dict[str, str] = {}
    _collect_libs(library, LANGUAGE_LIB, parts)
    modules = {name: text for name, text in parts.items() if _MODULE_SYNTAX.search(text)}
    global_types = "\n".join(text for name, text in parts.items() if name not in modules)
    (folder / "es.d.ts").write_text(minify_declarations(global_types))
    for name, text in modules.items():
        (folder / f"{name}.d.ts").write_text(minify_declarations(text))


def _collect_libs(library: Path, name: str, parts: dict[str, str]) -> None:
    if name not in parts:
        text = parts[name] = (library / f"lib.{name}.d.ts").read_text()
        for other in _LIB_REFERENCE.findall(text):
            _collect_libs(library, other, parts)


def _deno_types_file(folder: Path, deno: str) -> str:
    """Returns the name of the file with Deno's types. The file is created once per Deno version."""
    name = f"deno-{deno_binary.deno_version(deno)}.d.ts"
    if not (folder / name).is_file():
        completed = subprocess.run([deno, "types"], env={"NO_COLOR": "1"}, capture_output=True, timeout=30)
        if completed.returncode != 0:
            raise SandboxUnavailable(f"`{deno} types` failed.")
        _write_file(folder / name, minify_declarations(completed.stdout.decode()))
    return name


def minify_declarations(declarations: str) -> str:
    """Removes comments and indentation from type declarations."""
    return _INDENTATION.sub("\n", _STRING_OR_COMMENT.sub(lambda token: token[1] or " ", declarations))


def _write_file(file: Path, text: str) -> None:
    """Writes a file atomically, because another process may be writing the same file."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(handle, "w") as new:
        new.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(file)
