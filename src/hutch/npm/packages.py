"""Installs each npm package once and provides it to all executions."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from hutch import errors
from hutch.errors import PackageNotFound, PackageTooLarge, StoreError
from hutch.npm import semver, tree
from hutch.npm.file_locks import FileLocks
from hutch.npm.install.errors import too_large
from hutch.npm.install.installer import Installer, StagingFolder
from hutch.npm.install.process import is_installer_jail_available
from hutch.npm.local.assembly import LocalPackage, assemble, dependencies_key
from hutch.npm.local.manifest import LocalManifest, read_manifest
from hutch.npm.local.sources import copy_sources
from hutch.npm.package_index import file_name
from hutch.npm.package_spec import PackageSpec
from hutch.npm.package_store import Package, PackageInfo, PackageStore
from hutch.npm.refusals import Refusals
from hutch.npm.tree import TreeLimit, TreeTooLarge
from hutch.npm.version_resolver import VersionResolver
from hutch.settings import Settings
from hutch.telemetry.counters import InstallCounters

__all__ = ["LocalPackage", "Package", "PackageInfo", "PackageManager", "Progress", "PruneResult"]

logger = logging.getLogger("hutch.npm")

Progress = Callable[[str], None]

# An installation may use a gigabyte of memory before it is stopped, so few run at a time.
MAX_INSTALLATIONS = 4
DAY_SECONDS = 86_400.0


class PruneResult(msgspec.Struct, frozen=True):
    """The packages that `prune` removed, and the number of removed folders without a record. `freed` is in
    bytes.
    """

    packages: tuple[PackageInfo, ...]
    leftovers: int
    freed: int


class _Installation:
    def __init__(self) -> None:
        self.task: asyncio.Task[Package]
        self.listeners: list[Progress] = []
        self._last_message = ""

    def report(self, text: str) -> None:
        if text != self._last_message:
            self._last_message = text
            for listener in self.listeners:
                listener(text)


class PackageManager:
    """Provides installed packages. Belongs to one event loop. Many processes may share the package folder."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_progress: Progress | None = None,
        counters: InstallCounters | None = None,
    ) -> None:
        self._counters = counters or InstallCounters()
        root = settings.home_path.absolute() / "npm"
        self._settings = settings
        self._on_progress = on_progress
        self._store = PackageStore(root)
        self._locks = FileLocks(root / "locks")
        self._refusals = Refusals(root / "refusals.json")
        self._installer = Installer(settings)
        self._resolver = VersionResolver(settings, self._store, self._installer, self._staging)
        self._slots = asyncio.Semaphore(MAX_INSTALLATIONS)
        self._installations: dict[PackageSpec, _Installation] = {}
        self._discarding: set[asyncio.Task[None]] = set()

    async def get(self, spec: PackageSpec, progress: Progress | None = None) -> Package:
        """Returns a package and installs it if necessary.

        Raises PackageNotFound, whose message is safe to show, and StoreError, whose message is for the
        operator. If a caller is cancelled, the installation continues, because other callers may be waiting
        for it.
        """
        ready = self._find_fresh(spec)
        if ready is None:
            self._check_refused(spec, self._resolver.fresh_version(spec))
            return await self._install_shared(spec, progress)
        self._refresh_early(spec)
        return ready

    async def add(self, spec: PackageSpec, progress: Progress | None = None) -> Package:
        """Like `get`, but always asks the registry to resolve a range or tag. Fails if the registry does not
        answer.
        """
        if spec.is_exact:
            return await self.get(spec, progress)
        return await self._install_shared(spec, progress, refresh=True)

    def _find_fresh(self, spec: PackageSpec) -> Package | None:
        """Returns an installed package if the registry does not have to be asked."""
        version = self._resolver.fresh_version(spec)
        return self._store.find(spec.name, version) if version else None

    def _find_resolved(self, spec: PackageSpec) -> Package | None:
        """Returns the installed package that a range or tag resolved to when the registry was last asked."""
        version = self._resolver.last_version(spec)
        return self._store.find(spec.name, version) if version else None

    def _check_refused(self, spec: PackageSpec, version: str | None) -> None:
        """Raises PackageTooLarge if this version of a package was refused before."""
        exact = PackageSpec(spec.name, version) if version else None
        limits = self._installer.limits
        if exact is not None and (limit := self._refusals.find(exact, limits)) is not None:
            raise too_large(spec, limit, limits)

    def _refresh_early(self, spec: PackageSpec) -> None:
        """Refreshes a range or tag in the background before it expires, so that callers do not wait."""
        if spec not in self._installations and self._resolver.is_refresh_due(spec):
            self._start(spec, known=self._find_resolved(spec), refresh=True)

    async def _install_shared(
        self, spec: PackageSpec, progress: Progress | None, *, refresh: bool = False
    ) -> Package:
        if self._settings.offline:
            return self._find_offline(spec)
        installation = self._installations.get(spec)
        if installation is None:
            known = None if refresh or spec.is_exact else self._find_resolved(spec)
            installation = self._start(spec, known=known, refresh=refresh)
        if progress is not None:
            installation.listeners.append(progress)
        try:
            return await asyncio.shield(installation.task)
        finally:
            if progress is not None:
                installation.listeners.remove(progress)

    def _start(self, spec: PackageSpec, *, known: Package | None, refresh: bool) -> _Installation:
        installation = self._installations[spec] = _Installation()
        if self._on_progress is not None:
            installation.listeners.append(self._on_progress)
        installation.task = asyncio.create_task(
            self._get_or_install(spec, installation.report, known=known, refresh=refresh)
        )
        installation.task.add_done_callback(lambda task: self._finished(spec, task))
        return installation

    def _finished(self, spec: PackageSpec, task: asyncio.Task[Package]) -> None:
        del self._installations[spec]
        # Mark the exception as retrieved, because all callers may have stopped waiting.
        if not task.cancelled():
            task.exception()

    def _find_offline(self, spec: PackageSpec) -> Package:
        for version in self._resolver.offline_versions(spec):
            if (package := self._store.find(spec.name, version)) is not None:
                return package
        raise PackageNotFound(
            f"{spec} is not installed on this server, and the server is offline (setting `offline`)."
        )

    async def _get_or_install(
        self, spec: PackageSpec, report: Progress, *, known: Package | None, refresh: bool
    ) -> Package:
        """Returns an installed package or installs it. If the registry is down, uses its previous answer for
        a range or tag for a while.
        """
        seconds = self._settings.install_seconds
        began, outcome = time.monotonic(), "failed"
        try:
            async with asyncio.timeout(seconds), self._locks.acquire(file_name(spec.name)):
                # Look again, because another process may have installed the package meanwhile.
                if not refresh and (ready := self._find_fresh(spec)) is not None:
                    outcome = ""
                    return ready
                async with self._slots:
                    package = await self._install(spec, report, known)
                outcome = "ok"
                if not spec.is_exact:
                    self._resolver.save(spec, package.version)
                return package
        except TimeoutError:
            outcome = "timeout"
            failure = PackageNotFound(f"{spec} could not be installed within {seconds:g} s.", retryable=True)
        except PackageNotFound as error:
            if not error.retryable:
                outcome = "too_large" if isinstance(error, PackageTooLarge) else "not_found"
            failure = error
        except OSError as error:
            if known is None and (obstacle := errors.explain_home_error(error)) is not None:
                raise StoreError(
                    f"{spec} cannot be installed: {obstacle}.", remedy=errors.HOME_REMEDY
                ) from None
            logger.error("installing %s: %s", spec, error)
            message = f"{spec} could not be installed because of an error on this server."
            failure = PackageNotFound(message, retryable=True)
        finally:
            if outcome:
                self._counters.add(outcome, time.monotonic() - began)
        if known is None or not failure.retryable:
            raise failure
        logger.warning("%s still resolves to %s: %s", spec, known.version, failure.message)
        self._resolver.postpone_refresh(spec)
        return known

    async def _install(self, spec: PackageSpec, report: Progress, known: Package | None) -> Package:
        requested = spec
        if known is not None:
            spec = await self._resolver.resolve(spec, report)
            if (package := self._store.find(spec.name, spec.version)) is not None:
                return package
            self._check_refused(spec, spec.version)
        metadata = self._store.metadata
        since = time.time() - self._settings.latest_seconds
        # For an exact version, old registry metadata is good enough: if it lacks the version, Deno
        # downloads the metadata again.
        own = None if spec.is_exact else spec.name
        unpacked = await asyncio.to_thread(self._store.unpacked_packages)
        with self._staging() as staging:
            await staging.run_in_thread(metadata.link_into, staging.downloads, since, own)
            version = spec.version if spec.is_exact else None
            try:
                if not unpacked and await asyncio.to_thread(is_installer_jail_available):
                    installed = await self._installer.install_directly(staging, spec, report)
                else:
                    lock = await self._installer.resolve(staging, spec, report)
                    version = lock.version
                    if (package := self._store.find(spec.name, version)) is not None:
                        return package
                    self._check_refused(spec, version)
                    installed = await self._installer.install(staging, spec, lock, unpacked, report)
            except PackageTooLarge as error:
                await self._remember_refusal(staging, requested, version, error.limit, report)
                raise
            package = self._store.add(staging, installed)
            staging.start_in_thread(metadata.save_from, staging.downloads)
            return package

    async def _remember_refusal(
        self,
        staging: StagingFolder,
        spec: PackageSpec,
        version: str | None,
        limit: TreeLimit,
        report: Progress,
    ) -> None:
        if version is None:
            # The version is not known, because the installer was stopped before it wrote which one it had
            # chosen. So resolve the range or tag again, with the metadata that the installer has downloaded.
            await staging.run_in_thread(self._store.metadata.save_from, staging.downloads)
            try:
                version = (await self._resolver.resolve(spec, report)).version
            except PackageNotFound:
                return
        self._refusals.add(PackageSpec(spec.name, version), limit, self._installer.limits)
        if not spec.is_exact:
            # If the folder is read-only, the next caller asks the registry again.
            with contextlib.suppress(OSError):
                self._resolver.save(spec, version)

    @contextlib.contextmanager
    def _staging(self) -> Iterator[StagingFolder]:
        staging = StagingFolder(self._store.stage())
        try:
            yield staging
        finally:
            if staging.tasks:
                # A thread still works in the folder: `start_in_thread` has started it, or the caller was
                # cancelled. Remove the folder when the thread has ended.
                task = asyncio.create_task(self._discard_after(staging))
                self._discarding.add(task)
                task.add_done_callback(self._discarding.discard)
            else:
                self._store.discard(staging.folder)

    async def _discard_after(self, staging: StagingFolder) -> None:
        await asyncio.gather(*staging.tasks, return_exceptions=True)
        self._store.discard(staging.folder)

    @contextlib.asynccontextmanager
    async def open_local(
        self, path: Path, shown: str, progress: Progress, *, refresh: bool = False
    ) -> AsyncIterator[LocalPackage]:
        """Copies an unpublished package and installs its dependencies. The package is removed when the
        context ends; its dependencies are kept for the next time. With `refresh`, the registry is asked to
        resolve the ranges of the dependencies again.

        `shown` names the package in errors. Raises InvalidPackage and PackageNotFound.
        """
        limits = self._installer.limits
        with self._staging() as staging:
            source = staging.folder / "source"
            try:
                await staging.run_in_thread(copy_sources, path, source, shown, limits)
            except TreeTooLarge as error:
                raise too_large(shown, error.limit, limits) from None
            manifest = await asyncio.to_thread(read_manifest, source, shown)
            spec = manifest.spec
            dependencies = None
            if manifest.dependencies:
                dependencies = await self._local_dependencies(manifest, progress, refresh=refresh)
            await staging.run_in_thread(assemble, staging.tree, source, manifest, dependencies)
            size, files = await self._installer.seal(
                staging, spec, lambda: tree.seal(staging.tree, *limits.maxima)
            )
            package = Package(
                spec.name,
                spec.version,
                staging.tree,
                size,
                files,
                staging.folder / "cache",
                is_typescript=manifest.entry is not None,
            )
            yield LocalPackage(package, manifest.note)

    async def _local_dependencies(
        self, manifest: LocalManifest, progress: Progress, *, refresh: bool
    ) -> Path:
        """Returns a tree with the dependencies. Installs them unless a package with the same dependencies was
        run before.
        """
        spec, seconds = manifest.spec, self._settings.install_seconds
        key = dependencies_key(manifest.dependencies)
        try:
            async with asyncio.timeout(seconds), self._locks.acquire(key):
                known = self._store.find_dependencies(key)
                if known is not None and not refresh:
                    return known
                if self._settings.offline:
                    raise PackageNotFound(
                        f"The dependencies of {spec} are not installed, and the setting `offline` is on."
                    )
                unpacked = await asyncio.to_thread(self._store.unpacked_packages)
                since = time.time() - (0 if refresh else self._settings.latest_seconds)
                with self._staging() as staging:
                    metadata = self._store.metadata
                    await staging.run_in_thread(metadata.link_into, staging.downloads, since)
                    await self._installer.install_dependencies(
                        staging, spec, manifest.dependencies, unpacked, progress
                    )
                    installed = self._store.add_dependencies(staging, key)
                    staging.start_in_thread(metadata.save_from, staging.downloads)
                    return installed
        except TimeoutError:
            raise PackageNotFound(
                f"The dependencies of {spec} could not be installed within {seconds:g} s.", retryable=True
            ) from None

    @contextlib.contextmanager
    def new_cache(self, package: Package, name: str) -> Iterator[Path]:
        """Yields a staging folder. Its content becomes the cache `name` of the package, unless an exception
        is raised.
        """
        with self._staging() as staging:
            yield staging.folder
            self._store.replace_cache(package, staging.folder / name)

    def find(self, spec: PackageSpec) -> Package | None:
        """Returns a package if this exact version is installed."""
        return self._store.find(spec.name, spec.version)

    def list(self) -> builtins.list[PackageInfo]:
        """Returns all installed packages, sorted by name and version. Raises OSError if the folder cannot be
        read.
        """
        self._store.index.check_readable()
        return self._store.package_infos()

    async def remove(self, name: str, version: str | None = None) -> builtins.list[PackageInfo]:
        """Removes one version, the versions in a range, or all versions. Returns the removed packages."""
        version_range = semver.parse_range(version) if version else None
        async with self._locks.acquire(file_name(name)):
            if version is None:
                records = [*self._store.index.versions_of(name)]
            else:
                records = self._store.index.versions_in(name, version_range) if version_range else []
            removed = [self._store.package_info(record) for record in records]
            for record in records:
                await asyncio.to_thread(self._store.remove, record)
            return removed

    async def prune(self, days: float = 30.0) -> PruneResult:
        """Removes packages that were not used for `days`, and incomplete or damaged packages."""
        self._store.index.check_readable()
        oldest = time.time() - days * DAY_SECONDS
        index = self._store.index
        removed: builtins.list[PackageInfo] = []
        freed = 0
        for record in [*index.records()]:
            async with self._locks.acquire(file_name(record.name)):
                if self._store.has_tree(record) and index.last_used(record.name, record.version) > oldest:
                    continue
                removed.append(self._store.package_info(record))
                freed += await asyncio.to_thread(self._store.remove, record)
        leftovers = [*self._store.leftovers()]
        await asyncio.to_thread(self._store.metadata.remove_older, oldest)
        for folder in leftovers:
            freed += await asyncio.to_thread(self._store.delete, folder)
        return PruneResult(tuple(removed), len(leftovers), freed)

    async def close(self) -> None:
        tasks = [installation.task for installation in self._installations.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._discarding)
        await asyncio.to_thread(self._store.close)
