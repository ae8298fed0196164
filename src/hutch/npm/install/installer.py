"""Installs packages with Deno's installer, which does not run the code of packages."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hutch.errors import InvalidPackage, PackageNotFound
from hutch.npm import tree
from hutch.npm.install import errors
from hutch.npm.install.process import InstallLimits, installer_jail_prefix, run_installer
from hutch.npm.lockfile import LockedPackage, LockFile, read_dependency_lock, read_lock_file
from hutch.npm.package_spec import PackageSpec, parse_spec
from hutch.npm.registry import RegistryConfig, package_folders, read_registry_config
from hutch.sandbox import deno_binary
from hutch.settings import Settings

logger = logging.getLogger("hutch.npm")

MAX_MANIFEST_BYTES = 1024 * 1024

T = TypeVar("T")
Report = Callable[[str], None]
UnpackedPackages = Mapping[LockedPackage, Path]
"""Folders of packages that are already unpacked in some tree of the package store."""

# Configuration file of the staging folder. Without it, Deno would search all parent folders for a
# configuration.
_CONFIGURATION = b'{"workspace": []}\n'
_ENVIRONMENT = {
    "DENO_NO_PROMPT": "1",
    "DENO_NO_UPDATE_CHECK": "1",
    "HOME": "/nonexistent",
    "NO_COLOR": "1",
}


class StagingFolder(msgspec.Struct, frozen=True):
    """Folder for one installation. Nothing outside of this folder changes until the finished tree is moved to
    the package store.
    """

    folder: Path
    tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work` in a thread and returns its result. The thread continues if the caller is cancelled."""
        return await asyncio.shield(self._begin(work, *args))

    def start_in_thread(self, work: Callable[..., object], *args: Any) -> None:
        """Starts `work` in a thread without waiting for it. The folder is kept until the thread ends."""
        self._begin(work, *args).add_done_callback(_log_failure)

    def _begin(self, work: Callable[..., T], *args: Any) -> asyncio.Task[T]:
        task = asyncio.create_task(asyncio.to_thread(work, *args))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def downloads(self) -> Path:
        return self.folder / "deno"

    def prepare(self, dependencies: Mapping[str, str]) -> None:
        self.tree.mkdir()
        self.write_manifest(dependencies)
        (self.tree / "deno.json").write_bytes(_CONFIGURATION)

    def write_manifest(self, dependencies: Mapping[str, str]) -> None:
        # Remove the lock file of an earlier step: if the archives are on another host than the registry, Deno
        # cannot read the lock file that it has written itself.
        (self.tree / "deno.lock").unlink(missing_ok=True)
        manifest = {"private": True, "dependencies": dependencies}
        (self.tree / "package.json").write_bytes(msgspec.json.encode(manifest))


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("cleaning up after an installation failed: %s", error)


class InstalledTree(msgspec.Struct, frozen=True):
    """Complete, read-only tree that is still in its staging folder."""

    lock: LockFile
    key: str
    size: int
    files: int


class Installer:
    def __init__(self, settings: Settings) -> None:
        self._home = settings.home_path.absolute()
        self.limits = InstallLimits(settings.max_package_bytes, settings.max_package_files)

    async def resolve(self, staging: StagingFolder, spec: PackageSpec, report: Report) -> LockFile:
        """Asks the registry which packages a spec needs. Raises PackageNotFound."""
        report(f"resolving {spec}")
        staging.prepare(_as_dependencies(spec))
        await self._run(staging, spec, ["--lockfile-only"], lambda _: None)
        return await self._lock(staging, spec)

    async def install(
        self,
        staging: StagingFolder,
        spec: PackageSpec,
        lock: LockFile,
        unpacked: UnpackedPackages,
        report: Report,
    ) -> InstalledTree:
        """Downloads the packages that were resolved in the same staging folder, checks them and makes them
        read-only.

        Packages that are already unpacked are not downloaded again. Raises PackageNotFound, also if the
        registry's answers have changed since `resolve`.
        """
        await staging.run_in_thread(_link_unpacked, staging.downloads, lock.packages, unpacked)
        installed = await self._install(staging, spec, report)
        resolved = {(package.name, package.version): package for package in lock.packages}
        changed = any(
            resolved.get((package.name, package.version), package) != package
            for package in installed.lock.packages
        )
        if changed or installed.lock.version != lock.version:
            raise PackageNotFound(f"{spec} changed in the registry during the installation.", retryable=True)
        return installed

    async def install_directly(
        self, staging: StagingFolder, spec: PackageSpec, report: Report
    ) -> InstalledTree:
        """Resolves and installs in one step, which is faster if no package is unpacked yet.

        Call this only if the installer runs in a jail, because package names are validated only after the
        installer has written files with these names.
        """
        staging.prepare(_as_dependencies(spec))
        return await self._install(staging, spec, report)

    async def install_dependencies(
        self,
        staging: StagingFolder,
        spec: PackageSpec,
        dependencies: Mapping[str, str],
        unpacked: UnpackedPackages,
        report: Report,
    ) -> None:
        """Installs the dependencies of a package that is not published, without the package itself, and makes
        them read-only. Raises PackageNotFound.
        """
        report(f"installing the dependencies of {spec}")
        staging.prepare(dependencies)
        await self._run(staging, spec, ["--lockfile-only"], lambda _: None)
        resolved = await self._read_lock(staging, spec, read_dependency_lock)
        await staging.run_in_thread(_link_unpacked, staging.downloads, resolved.packages, unpacked)
        counter = _DownloadCounter(report)
        staging.write_manifest(dependencies)
        await self._run(staging, spec, [], counter)
        lock = await self._read_lock(staging, spec, read_dependency_lock)
        peers = await asyncio.to_thread(_uninstalled_optional_peers, staging.tree, lock.packages)
        if peers:
            staging.write_manifest({**_as_dependencies(*peers), **dependencies})
            await self._run(staging, spec, [], counter)
            lock = await self._read_lock(staging, spec, read_dependency_lock)
        _remove_installer_files(staging.tree)
        (staging.tree / "deno.lock").write_bytes(lock.text)
        await self.seal(staging, spec, lambda: tree.seal(staging.tree, *self.limits.maxima))

    async def seal(self, staging: StagingFolder, spec: PackageSpec, work: Callable[[], T]) -> T:
        """Runs `work`, which seals a tree. Raises PackageNotFound if the tree is too large or unsafe."""
        try:
            return await staging.run_in_thread(work)
        except tree.TreeTooLarge as error:
            raise errors.too_large(spec, error.limit, self.limits) from None
        except tree.UnsafeTree as error:
            logger.warning("installing %s: unsafe entry %s", spec, ascii(str(error)))
            raise PackageNotFound(f"{spec} has links that lead out of it.") from None

    async def _install(self, staging: StagingFolder, spec: PackageSpec, report: Report) -> InstalledTree:
        report(f"installing {spec}")
        counter = _DownloadCounter(report)
        staging.write_manifest(_as_dependencies(spec))
        await self._run(staging, spec, [], counter)
        lock = await self._lock(staging, spec)
        peers = await asyncio.to_thread(_uninstalled_optional_peers, staging.tree, lock.packages, lock.name)
        if peers:
            staging.write_manifest(_as_dependencies(spec, *peers))
            await self._run(staging, spec, [], counter)
            lock = await self._lock(staging, spec)
        report("checking")
        staging.write_manifest(_as_dependencies(PackageSpec(lock.name, lock.version), *peers))
        return await self.seal(staging, spec, lambda: _seal(staging, lock, self.limits))

    async def _lock(self, staging: StagingFolder, spec: PackageSpec) -> LockFile:
        return await self._read_lock(staging, spec, lambda path: read_lock_file(path, spec.name))

    async def _read_lock(self, staging: StagingFolder, spec: PackageSpec, read: Callable[[Path], T]) -> T:
        try:
            return await asyncio.to_thread(read, staging.tree / "deno.lock")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning("installing %s: its lock file cannot be used: %s", spec, error)
            raise PackageNotFound(f"{spec} could not be installed.") from None

    async def _run(
        self, staging: StagingFolder, spec: PackageSpec, options: Sequence[str], on_line: Report
    ) -> None:
        config = await asyncio.to_thread(read_registry_config, self._home)
        jail = await asyncio.to_thread(installer_jail_prefix, staging.folder)
        environment = {**_ENVIRONMENT, **config.variables, "DENO_DIR": str(staging.downloads)}
        if config.certificates:
            environment["DENO_CERT"] = _certificates(staging, config)
        npmrc_file = _NpmrcFile(staging.tree / ".npmrc", config.npmrc)
        with npmrc_file:
            exit_status = await run_installer(
                [*jail, deno_binary.find_deno(), "install", *options],
                cwd=staging.tree,
                env=environment,
                pass_fds=npmrc_file.descriptors,
                watched=(staging.downloads, staging.tree),
                limits=self.limits,
                on_line=on_line,
            )
        if exit_status.code != 0 or exit_status.exceeded is not None:
            failure = errors.explain(spec, exit_status, self.limits)
            first, cause = errors.error_lines(exit_status.error_output)
            # Log a missing package as information, because it is the caller's mistake. Other failures may
            # concern the operator.
            level = logging.WARNING if cause or exit_status.exceeded else logging.INFO
            logger.log(level, "%s Installer output: %s %s", failure.message, first, cause)
            raise failure


class _NpmrcFile:
    """Provides the npm configuration at the path where the installer looks for it. The content stays in
    memory, because it contains tokens.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self.descriptors: tuple[int, ...] = ()
        if text:
            handle = os.memfd_create("hutch-npmrc")
            self.descriptors = (handle,)
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(text.encode())

    def __enter__(self) -> None:
        for handle in self.descriptors:
            self._path.symlink_to(f"/proc/self/fd/{handle}")

    def __exit__(self, *_: object) -> None:
        for handle in self.descriptors:
            self._path.unlink()
            os.close(handle)


class _DownloadCounter:
    """Counts the downloads that the installer prints, and reports only their number."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._count = 0

    def __call__(self, line: str) -> None:
        if line.startswith("Download ") and line.endswith(".tgz"):
            self._count += 1
            self._report(f"downloading package {self._count}")


def _certificates(staging: StagingFolder, config: RegistryConfig) -> str:
    """Returns the path of a file with all configured certificates. The installer accepts only one file."""
    if len(config.certificates) == 1:
        return config.certificates[0]
    bundle = staging.folder / "certificates.pem"
    bundle.write_bytes(b"\n".join(Path(path).read_bytes() for path in config.certificates))
    return str(bundle)


def _link_unpacked(downloads: Path, locked: Sequence[LockedPackage], unpacked: UnpackedPackages) -> None:
    packages: dict[str, list[LockedPackage]] = {}
    for package in locked:
        packages.setdefault(package.name, []).append(package)
    for name, folder in list(package_folders(downloads)):
        for package in packages.get(name, ()):
            source, target = unpacked.get(package), folder / package.version
            if source is None:
                continue
            partial = target.with_name(f"{package.version}.half")
            # A package that is not linked here is downloaded instead. Linking fails if another process is
            # removing the package. A package that declares programs is not linked if none of its files is
            # executable.
            with contextlib.suppress(OSError):
                if tree.link(source, partial) or not package.bin:
                    partial.rename(target)


def unpacked_path(folder: Path, package: LockedPackage) -> Path:
    modules = folder / "node_modules" / ".deno"
    return modules / f"{package.name.replace('/', '+')}@{package.version}" / "node_modules" / package.name


class _Peer(msgspec.Struct):
    optional: bool = False


class _Manifest(msgspec.Struct, rename="camel"):
    dependencies: dict[str, str] = {}
    peer_dependencies_meta: dict[str, _Peer] = {}


def _as_dependencies(*specs: PackageSpec) -> dict[str, str]:
    return {spec.name: spec.version for spec in specs}


def _uninstalled_optional_peers(
    folder: Path, packages: Sequence[LockedPackage], own_name: str | None = None
) -> list[PackageSpec]:
    """Returns dependencies that a package also lists as optional peers. npm installs these, Deno does not."""
    specs: dict[str, PackageSpec] = {}
    for package in packages:
        path = unpacked_path(folder, package)
        # Package authors write the manifests, so invalid manifests and invalid dependencies are skipped.
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError, InvalidPackage):
            with (path / "package.json").open("rb") as file:
                manifest = msgspec.json.decode(file.read(MAX_MANIFEST_BYTES), type=_Manifest)
            for name, peer in manifest.peer_dependencies_meta.items():
                version = manifest.dependencies.get(name) if peer.optional else None
                siblings = path.parents[package.name.count("/")]
                if version is not None and not (siblings / name).exists():
                    specs.setdefault(name, parse_spec(name, version))
    return [spec for name, spec in specs.items() if name != own_name]


def write_loader(folder: Path, specifier: str) -> None:
    """Adds `load.mjs`, through which a guest imports the package of a tree."""
    quoted = msgspec.json.encode(specifier).decode()
    (folder / "load.mjs").write_text(f"export default () => import({quoted});\n")


def _remove_installer_files(folder: Path) -> None:
    metadata = folder / "node_modules" / ".deno"
    for name in (".deno.lock", ".setup-cache.bin"):
        (metadata / name).unlink(missing_ok=True)
    (folder / "deno.json").unlink()


def _seal(staging: StagingFolder, lock: LockFile, limits: InstallLimits) -> InstalledTree:
    """Removes files that a guest must not see, adds `load.mjs`, and makes the tree read-only."""
    _remove_installer_files(staging.tree)
    (staging.tree / "deno.lock").write_bytes(lock.text)
    write_loader(staging.tree, lock.name)
    size, files = tree.seal(staging.tree, *limits.maxima)
    key = lock.key
    if not lock.is_complete:
        # Some packages have no integrity, so the content has to be part of the key.
        key = hashlib.sha256((key + tree.digest(staging.tree)).encode()).hexdigest()[: len(key)]
    return InstalledTree(lock, key, size, files)
