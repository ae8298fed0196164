"""TypeScript's native compiler: fetched once in a pinned version, checked, and kept in HUTCH_HOME."""

from __future__ import annotations

import asyncio
import itertools
import logging
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hutch.doors.toolscript import ambient
from hutch.errors import PackageNotFound
from hutch.npm import tree
from hutch.npm.turns import Turns
from hutch.sandbox import identity, runtime, temporary
from hutch.settings import MIB, Settings

if TYPE_CHECKING:
    from hutch.npm.installer import Staging
    from hutch.npm.lockfile import Locked
    from hutch.npm.names import PackageSpec

logger = logging.getLogger("hutch.toolscript")

Say = Callable[[str], None]

VERSION = "7.0.2"
# By machine: the package with the compiler for it, and what npm's registry says of that package's archive.
# A newer version has to pass the tests: what is spoken with it (see service.py) is promised for none.
PACKAGES = {
    "x86_64": (
        "@typescript/typescript-linux-x64",
        "sha512-EYdf2cNg7rgCWJnxCdJ+F3V39O8ihb37eHAu1LK8oAFizgTQbPOK7zHHXbPt8rX24COqODXeI3sIf0fCXG7H/A==",
    ),
    "aarch64": (
        "@typescript/typescript-linux-arm64",
        "sha512-Qh4eU4/y3yDjnfjjyPYihMj5/ODIlmt+Bzu17OI+fiSRDW57QmU5SiN63exPRNJPKUzcc1INa1NXdrJ+MqHjUQ==",
    ),
}
_MOST_BYTES = 128 * MIB
_MOST_FILES = 1_000
_numbers = itertools.count(1)


class Compiler(msgspec.Struct, frozen=True):
    """A compiler that is there, and the types that every script may use."""

    folder: Path
    ambient: tuple[str, ...]
    """Names of the files in the folder that declare ECMAScript's and Deno's own names."""

    @property
    def program(self) -> Path:
        return self.folder / "tsc"


class Shed:
    """The folder below HUTCH_HOME for compilers and for what a check needs for its own time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.home_path.absolute() / "typescript"
        self._turns = Turns(self._root / "locks")

    async def compiler(self, say: Say | None = None) -> Compiler:
        """The compiler, fetched if it is not here yet. Raises PackageNotFound when it cannot be had."""
        await asyncio.to_thread(self._sweep)
        folder = self._root / VERSION
        if not folder.is_dir():
            await self._fetch(folder, say or (lambda _: None))
        deno = await asyncio.to_thread(ambient.of_deno, folder, runtime.locate())
        return Compiler(folder, (*ambient.of_language(folder), deno))

    def stage(self) -> Path:
        """A new folder, whose name says which process to ask about it. Raises OSError."""
        folder = self._root / "staging" / f"{identity.of_this_host()}-{next(_numbers)}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def stage_anywhere(self) -> Path:
        """The same for what is needed for a moment, also where the home cannot be written."""
        try:
            return self.stage()
        except OSError:
            return temporary.make_folder()

    def _sweep(self) -> None:
        """Removes what processes that were killed left behind."""
        for folder in (self._root / "staging").glob("*"):
            if identity.is_gone(folder.name.rpartition("-")[0]):
                tree.discard(folder)

    async def _fetch(self, folder: Path, say: Say) -> None:
        from hutch.npm.names import PackageSpec

        what = f"TypeScript {VERSION}"
        package = PACKAGES.get(platform.machine())
        if package is None:
            raise PackageNotFound(f"There is no compiler of {what} for {platform.machine()}.")
        if self._settings.offline:
            raise PackageNotFound(f"The compiler of {what} is not here, and Hutch is set to be offline.")
        seconds = self._settings.install_seconds
        try:
            async with asyncio.timeout(seconds), self._turns.of(VERSION):
                # Somebody else may have been quicker.
                if not folder.is_dir():  # noqa: ASYNC240
                    await self._install(folder, PackageSpec(package[0], VERSION), package[1], say)
        except TimeoutError:
            message = f"The compiler of {what} could not be fetched within {seconds:g} s."
            raise PackageNotFound(message, retryable=True) from None
        except OSError as error:
            raise PackageNotFound(f"The compiler of {what} could not be kept: {error.strerror}.") from None

    async def _install(self, folder: Path, spec: PackageSpec, integrity: str, say: Say) -> None:
        from hutch.npm.installer import Installer, Staging

        # What an operator allows to tools' packages says nothing of this one.
        bounds = {"max_package_bytes": _MOST_BYTES, "max_package_files": _MOST_FILES}
        staging = Staging(self.stage())
        try:
            installer = Installer(msgspec.structs.replace(self._settings, **bounds))
            lock = await installer.resolve(staging, spec, say)
            # What is fetched then is compared with what the lock file says.
            if [each.integrity for each in lock.packages] != [integrity]:
                raise PackageNotFound(f"What the registry has as TypeScript {VERSION} is not what it was.")
            await installer.install(staging, spec, lock, {}, say)
            await asyncio.to_thread(_keep, staging, lock.packages[0], folder)
        finally:
            await asyncio.to_thread(tree.discard, staging.folder)


def _keep(staging: Staging, package: Locked, folder: Path) -> None:
    """Makes of the package what is needed of it. It appears in its place at once and whole."""
    from hutch.npm.installer import unpacked

    library = unpacked(staging.tree, package) / "lib"
    made = staging.folder / "made"
    made.mkdir()
    shutil.copyfile(library / "tsc", made / "tsc")
    (made / "tsc").chmod(0o755)
    # It does not start without this one beside it.
    shutil.copyfile(library / "lib.d.ts", made / "lib.d.ts")
    ambient.merge(library, made)
    made.rename(folder)
