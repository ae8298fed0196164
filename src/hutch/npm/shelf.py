"""The shelf: npm packages by name and version, installed once and kept for all executions."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from hutch import home
from hutch.errors import PackageNotFound, StoreError
from hutch.npm import fence, versions
from hutch.npm.installer import Installer, Staging
from hutch.npm.names import LATEST, PackageSpec
from hutch.npm.records import Record, Resolution, file_name
from hutch.npm.store import Entry, Package, Store
from hutch.npm.turns import Turns
from hutch.settings import Settings

__all__ = ["Entry", "Package", "Progress", "Pruned", "Shelf"]

logger = logging.getLogger("hutch.npm")

Progress = Callable[[str], None]

# An installation may take a gigabyte of memory before it is stopped.
AT_ONCE = 4
# How long a range or tag that we have an answer for may keep its caller waiting for a newer one,
# and how long a registry that did not give it is left alone.
REFRESH_SECONDS = 5.0
HOLD_SECONDS = 30.0
# After which part of its time an answer is renewed by whoever comes, who need not wait.
EARLY = 0.8
DAY = 86_400.0


class Pruned(msgspec.Struct, frozen=True):
    """What pruning removed: packages, things that nobody knew of, and the bytes of both."""

    packages: tuple[Entry, ...]
    leftovers: int
    freed: int


class _Flight:
    """An installation under way, and all who want to know how it goes."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Package]
        self.listeners: list[Progress] = []
        self._said = ""

    def say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            for listener in self.listeners:
                listener(text)


class Shelf:
    """Packages for whoever asks. It belongs to one event loop; many processes may share its folder."""

    def __init__(self, settings: Settings, *, on_progress: Progress | None = None) -> None:
        root = settings.home_path.absolute() / "npm"
        self._settings = settings
        self._on_progress = on_progress
        self._store = Store(root)
        self._turns = Turns(root / "locks")
        self._installer = Installer(settings)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._flights: dict[PackageSpec, _Flight] = {}
        self._discarding: set[asyncio.Task[None]] = set()

    # --- getting ---

    async def get(self, spec: PackageSpec, progress: Progress | None = None) -> Package:
        """The package, installed if it is not on the shelf yet.

        Raises PackageNotFound, whose message is safe to show, and StoreError, whose message is the
        operator's. Who gives up waiting does not stop the installation: others may wait for it, and it ends
        by itself.
        """
        ready = self._ready(spec)
        if ready is None:
            return await self._fetch(spec, progress)
        self._refresh_early(spec)
        return ready

    async def add(self, spec: PackageSpec, progress: Progress | None = None) -> Package:
        """The same, but what a range or tag is, is asked for anew, and an older answer will not do."""
        if spec.is_exact:
            return await self.get(spec, progress)
        return await self._fetch(spec, progress, anew=True)

    def _ready(self, spec: PackageSpec) -> Package | None:
        """What can be given without asking anybody."""
        if spec.is_exact:
            return self._store.find(spec.name, spec.version)
        resolution = self._resolution(spec)
        fresh = resolution is not None and self._is_fresh(resolution)
        return self._store.find(spec.name, resolution.version) if resolution and fresh else None

    def _known(self, spec: PackageSpec) -> Package | None:
        """What a range or tag was when it was last asked for."""
        resolution = self._resolution(spec)
        return self._store.find(spec.name, resolution.version) if resolution else None

    def _resolution(self, spec: PackageSpec) -> Resolution | None:
        return self._store.records.resolutions(spec.name).get(spec.version)

    def _is_fresh(self, resolution: Resolution) -> bool:
        now = time.time()
        return 0 <= now - resolution.at < self._settings.latest_seconds or now < resolution.held_until

    def _refresh_early(self, spec: PackageSpec) -> None:
        """Of what is used all the time nobody has to wait for a newer version to be looked for."""
        resolution = None if spec.is_exact or self._settings.offline else self._resolution(spec)
        if resolution is None or spec in self._flights:
            return
        soon = time.time() - resolution.at > EARLY * self._settings.latest_seconds
        if soon and time.time() > resolution.held_until:
            self._begin(spec, known=self._known(spec), anew=True)

    # --- fetching ---

    async def _fetch(self, spec: PackageSpec, progress: Progress | None, *, anew: bool = False) -> Package:
        if self._settings.offline:
            return self._offline(spec)
        flight = self._flights.get(spec)
        if flight is None:
            known = None if anew or spec.is_exact else self._known(spec)
            flight = self._begin(spec, known=known, anew=anew)
        if progress is not None:
            flight.listeners.append(progress)
        try:
            return await asyncio.shield(flight.task)
        finally:
            if progress is not None:
                flight.listeners.remove(progress)

    def _begin(self, spec: PackageSpec, *, known: Package | None, anew: bool) -> _Flight:
        flight = self._flights[spec] = _Flight()
        if self._on_progress is not None:
            flight.listeners.append(self._on_progress)
        flight.task = asyncio.create_task(self._obtain(spec, flight.say, known=known, anew=anew))
        flight.task.add_done_callback(lambda task: self._landed(spec, task))
        return flight

    def _landed(self, spec: PackageSpec, task: asyncio.Task[Package]) -> None:
        del self._flights[spec]
        # Perhaps nobody waits any longer to whom a failure would matter.
        if not task.cancelled():
            task.exception()

    def _offline(self, spec: PackageSpec) -> Package:
        """The best that we have, however old."""
        known = None if spec.is_exact else self._known(spec)
        if known is not None:
            return known
        wanted = versions.ranged("*" if spec.version == LATEST else spec.version)
        if wanted is not None:
            for record in sorted(self._matching(spec.name, wanted), key=_version_of, reverse=True):
                if (package := self._store.find(record.name, record.version)) is not None:
                    return package
        raise PackageNotFound(f"{spec} is not on this server's shelf, and the server is set to be offline.")

    def _matching(self, name: str, wanted: versions.Range) -> builtins.list[Record]:
        return [each for each in self._store.records.versions_of(name) if wanted.matches(_version_of(each))]

    async def _obtain(
        self, spec: PackageSpec, say: Progress, *, known: Package | None, anew: bool
    ) -> Package:
        """Installs it. If the registry is down, what a range or tag was before will do for a while."""
        seconds = self._settings.install_seconds
        try:
            async with asyncio.timeout(seconds), self._turns.of(file_name(spec.name)):
                # Somebody else may have been quicker.
                if not anew and (ready := self._ready(spec)) is not None:
                    return ready
                async with self._places:
                    package = await self._install(spec, say, known)
                if not spec.is_exact:
                    self._store.records.resolve(spec.name, spec.version, package.version)
                return package
        except TimeoutError:
            failure = PackageNotFound(f"{spec} could not be installed within {seconds:g} s.", retryable=True)
        except PackageNotFound as error:
            failure = error
        except OSError as error:
            if known is None and (obstacle := home.obstacle(error)) is not None:
                raise StoreError(f"{spec} cannot be installed: {obstacle}.", remedy=home.REMEDY) from None
            logger.error("installing %s: %s", spec, error)
            message = f"{spec} could not be installed because of a fault of this server."
            failure = PackageNotFound(message, retryable=True)
        if known is None or not failure.retryable:
            raise failure
        logger.warning("%s stays %s for now: %s", spec, known.version, failure.message)
        # On a shelf that cannot be written the next one asks again.
        with contextlib.suppress(OSError):
            self._store.records.hold(spec.name, spec.version, time.time() + HOLD_SECONDS)
        return known

    async def _install(self, spec: PackageSpec, say: Progress, known: Package | None) -> Package:
        if known is not None:
            spec = await self._resolve(spec, say)
            if (package := self._store.find(spec.name, spec.version)) is not None:
                return package
        documents = self._store.documents
        since = time.time() - self._settings.latest_seconds
        # An exact version that our document of it does not have yet is asked for anyway.
        own = None if spec.is_exact else spec.name
        seeds = await asyncio.to_thread(self._store.seeds)
        with self._staging() as staging:
            await staging.aside(documents.lend, staging.downloads, since, own)
            if not seeds and await asyncio.to_thread(fence.holds):
                installed = await self._installer.install_at_once(staging, spec, say)
            else:
                lock = await self._installer.resolve(staging, spec, say)
                if (package := self._store.find(spec.name, lock.version)) is not None:
                    return package
                installed = await self._installer.install(staging, spec, lock, seeds, say)
            package = self._store.shelve(staging, installed)
            staging.later(documents.keep, staging.downloads)
            return package

    async def _resolve(self, spec: PackageSpec, say: Progress) -> PackageSpec:
        """The exact version, in a hurry: only the package's own document has to be new."""
        try:
            with self._staging() as staging:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await staging.aside(self._store.documents.lend, staging.downloads, 0.0, spec.name)
                    lock = await self._installer.resolve(staging, spec, say)
                await staging.aside(self._store.documents.keep, staging.downloads)
                return PackageSpec(spec.name, lock.version)
        except TimeoutError:
            raise PackageNotFound("The package registry did not answer in time.", retryable=True) from None

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Staging]:
        staging = Staging(self._store.stage())
        try:
            yield staging
        finally:
            if staging.working:
                # Given up while a thread was at it, which would put things where nothing is any more.
                task = asyncio.create_task(self._discard_after(staging))
                self._discarding.add(task)
                task.add_done_callback(self._discarding.discard)
            else:
                self._store.discard(staging.folder)

    async def _discard_after(self, staging: Staging) -> None:
        await asyncio.gather(*staging.working, return_exceptions=True)
        self._store.discard(staging.folder)

    # --- what was made of their code ---

    @contextlib.contextmanager
    def caching(self, package: Package, name: str) -> Iterator[Path]:
        """A folder in which one of this name is to be made: it is kept, unless this is left with an error."""
        with self._staging() as staging:
            yield staging.folder
            self._store.keep_cache(package, staging.folder / name)

    # --- keeping order ---

    def list(self) -> builtins.list[Entry]:
        """All that is on the shelf, by name and version. Raises OSError where that cannot be seen."""
        self._store.records.check_readable()
        return self._store.entries()

    async def remove(self, name: str, version: str | None = None) -> builtins.list[Entry]:
        """Takes a package off the shelf: a version, those in a range, or all. Gives what that was."""
        wanted = versions.ranged(version) if version else None
        async with self._turns.of(file_name(name)):
            if version is None:
                records = [*self._store.records.versions_of(name)]
            else:
                records = self._matching(name, wanted) if wanted else []
            removed = [self._store.entry(record) for record in records]
            for record in records:
                await asyncio.to_thread(self._store.remove, record)
            return removed

    async def prune(self, days: float = 30.0) -> Pruned:
        """Removes what was not used for so many days, and whatever was left half-done or damaged."""
        self._store.records.check_readable()
        oldest = time.time() - days * DAY
        records = self._store.records
        removed: builtins.list[Entry] = []
        freed = 0
        for record in [*records.all()]:
            async with self._turns.of(file_name(record.name)):
                if self._store.is_whole(record) and records.used(record.name, record.version) > oldest:
                    continue
                removed.append(self._store.entry(record))
                freed += await asyncio.to_thread(self._store.remove, record)
        leftovers = [*self._store.leftovers()]
        await asyncio.to_thread(self._store.documents.forget, oldest)
        for folder in leftovers:
            freed += await asyncio.to_thread(self._store.throw_away, folder)
        return Pruned(tuple(removed), len(leftovers), freed)

    async def close(self) -> None:
        """Ends what is under way, and leaves no rests."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._discarding)
        await asyncio.to_thread(self._store.close)


def _version_of(record: Record) -> versions.Version:
    return versions.exact(record.version) or versions.ZERO
