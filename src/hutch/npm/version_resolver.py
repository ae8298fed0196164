"""Resolves npm version ranges and tags to exact versions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from hutch.errors import PackageNotFound
from hutch.npm import semver
from hutch.npm.install.installer import Installer, Report, StagingFolder
from hutch.npm.package_index import Resolution
from hutch.npm.package_spec import LATEST, PackageSpec
from hutch.npm.package_store import PackageStore
from hutch.settings import Settings

# Timeout for resolving a range or tag again that was resolved before. If the registry fails or does not
# answer in time, the old answer is used for HOLD_SECONDS.
REFRESH_SECONDS = 5.0
HOLD_SECONDS = 30.0
# Fraction of the lifetime of an answer after which its next use refreshes it in the background.
EARLY_REFRESH = 0.8


class VersionResolver:
    """Resolves ranges and tags. The registry's answers are saved in the package index and used for
    `latest_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        store: PackageStore,
        installer: Installer,
        new_staging: Callable[[], AbstractContextManager[StagingFolder]],
    ) -> None:
        self._settings = settings
        self._store = store
        self._installer = installer
        self._new_staging = new_staging

    def fresh_version(self, spec: PackageSpec) -> str | None:
        """Returns the exact version if it is known without asking the registry."""
        if spec.is_exact:
            return spec.version
        resolution = self._resolution(spec)
        return resolution.version if resolution and self._is_fresh(resolution) else None

    def last_version(self, spec: PackageSpec) -> str | None:
        """Returns the version that a range or tag resolved to when the registry was last asked."""
        resolution = self._resolution(spec)
        return resolution.version if resolution else None

    def offline_versions(self, spec: PackageSpec) -> Iterator[str]:
        """Yields versions that can be used without the registry, best version first."""
        if not spec.is_exact and (last := self.last_version(spec)) is not None:
            yield last
        version_range = semver.parse_range("*" if spec.version == LATEST else spec.version)
        if version_range is not None:
            records = self._store.index.versions_in(spec.name, version_range)
            yield from sorted((record.version for record in records), key=semver.sort_key, reverse=True)

    async def resolve(self, spec: PackageSpec, report: Report) -> PackageSpec:
        """Resolves a range or tag to an exact version with Deno, as in an installation. Raises
        PackageNotFound.

        Only the package's own document is downloaded again. For its dependencies, cached documents are used,
        however old they are, because this is faster.
        """
        metadata = self._store.metadata
        try:
            with self._new_staging() as staging:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await staging.run_in_thread(metadata.link_into, staging.downloads, 0.0, spec.name)
                    lock = await self._installer.resolve(staging, spec, report)
                await staging.run_in_thread(metadata.save_from, staging.downloads)
                return PackageSpec(spec.name, lock.version)
        except TimeoutError:
            raise PackageNotFound("The package registry did not answer in time.", retryable=True) from None

    def save(self, spec: PackageSpec, version: str) -> None:
        """Saves the version that the registry returned for a range or tag."""
        self._store.index.save_resolution(spec.name, spec.version, version)

    def is_refresh_due(self, spec: PackageSpec) -> bool:
        """Returns True if a range or tag should be resolved again in the background, because its answer
        expires soon.
        """
        resolution = None if spec.is_exact or self._settings.offline else self._resolution(spec)
        if resolution is None:
            return False
        now = time.time()
        is_due = now - resolution.at > EARLY_REFRESH * self._settings.latest_seconds
        return is_due and now > resolution.held_until

    def postpone_refresh(self, spec: PackageSpec) -> None:
        """Keeps the last version for HOLD_SECONDS, because the registry failed."""
        # If the folder is read-only, the next caller asks the registry again.
        with contextlib.suppress(OSError):
            self._store.index.postpone_refresh(spec.name, spec.version, time.time() + HOLD_SECONDS)

    def _resolution(self, spec: PackageSpec) -> Resolution | None:
        return self._store.index.resolutions(spec.name).get(spec.version)

    def _is_fresh(self, resolution: Resolution) -> bool:
        now = time.time()
        return 0 <= now - resolution.at < self._settings.latest_seconds or now < resolution.held_until
