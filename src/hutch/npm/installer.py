"""Installs packages with Deno's own installer, which runs none of their code."""

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
from hutch.npm import command, documents, failures, fence, lockfile, names, tree
from hutch.npm.lockfile import Lock, Locked
from hutch.npm.names import PackageSpec
from hutch.npm.registry import Access, access
from hutch.sandbox import runtime
from hutch.settings import Settings

logger = logging.getLogger("hutch.npm")

T = TypeVar("T")
Say = Callable[[str], None]
Seeds = Mapping[Locked, Path]
"""Packages that some tree has already, with where they are unpacked."""

# It looks for configuration in all folders above; this one says that there is none to look for.
_CONFIGURATION = b'{"workspace": []}\n'
_ENVIRONMENT = {
    "DENO_NO_PROMPT": "1",
    "DENO_NO_UPDATE_CHECK": "1",
    "HOME": "/nonexistent",
    "NO_COLOR": "1",
}


class Staging(msgspec.Struct, frozen=True):
    """A folder for one installation. Whatever comes of it, nothing else has been touched."""

    folder: Path
    working: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)
    """What threads are doing in it."""

    async def aside(self, work: Callable[..., T], *given: Any) -> T:
        """Does something in it in a thread, which goes on even when nobody waits for it any longer."""
        return await asyncio.shield(self._begin(work, *given))

    def later(self, work: Callable[..., object], *given: Any) -> None:
        """The same for who does not wait at all. The folder stays as long."""
        self._begin(work, *given).add_done_callback(_look_at)

    def _begin(self, work: Callable[..., T], *given: Any) -> asyncio.Task[T]:
        task = asyncio.create_task(asyncio.to_thread(work, *given))
        self.working.add(task)
        task.add_done_callback(self.working.discard)
        return task

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def downloads(self) -> Path:
        """The installer's own cache."""
        return self.folder / "deno"

    def prepare(self, spec: PackageSpec) -> None:
        self.tree.mkdir()
        self.ask_for(spec)
        (self.tree / "deno.json").write_bytes(_CONFIGURATION)

    def ask_for(self, *specs: PackageSpec) -> None:
        # A lock file that names another host than the registry's for archives is not read again.
        (self.tree / "deno.lock").unlink(missing_ok=True)
        manifest = {"private": True, "dependencies": {spec.name: spec.version for spec in specs}}
        (self.tree / "package.json").write_bytes(msgspec.json.encode(manifest))


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("after an installation: %s", error)


class Installed(msgspec.Struct, frozen=True):
    """A tree that is whole and read-only, still in its staging folder."""

    lock: Lock
    key: str
    size: int
    files: int


class Installer:
    """Resolves and installs, one package a staging folder."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home_path.absolute()
        self._bounds = command.Bounds(settings.max_package_bytes, settings.max_package_files)

    async def resolve(self, staging: Staging, spec: PackageSpec, say: Say) -> Lock:
        """Asks the registry what a package consists of. Raises PackageNotFound."""
        say(f"resolving {spec}")
        staging.prepare(spec)
        await self._run(staging, spec, ["--lockfile-only"], lambda _: None)
        return await self._lock(staging, spec)

    async def install(
        self, staging: Staging, spec: PackageSpec, lock: Lock, seeds: Seeds, say: Say
    ) -> Installed:
        """Fetches what was resolved in the same staging folder, checks it and seals it.

        Seeds are taken instead of what would be downloaded. Raises PackageNotFound, also if the registry
        has changed its mind on what any of it is.
        """
        await staging.aside(_sow, staging.downloads, lock, seeds)
        installed = await self._install(staging, spec, say)
        resolved = {(each.name, each.version): each for each in lock.packages}
        changed = any(
            resolved.get((each.name, each.version), each) != each for each in installed.lock.packages
        )
        if changed or installed.lock.version != lock.version:
            raise PackageNotFound(f"{spec} has changed in the registry just now.", retryable=True)
        return installed

    async def install_at_once(self, staging: Staging, spec: PackageSpec, say: Say) -> Installed:
        """The same in one go, which is quicker where there are no seeds.

        But what the registry calls things is seen only after files of these names were written.
        """
        staging.prepare(spec)
        return await self._install(staging, spec, say)

    async def _install(self, staging: Staging, spec: PackageSpec, say: Say) -> Installed:
        say(f"installing {spec}")
        count = _Count(say)
        staging.ask_for(spec)
        await self._run(staging, spec, [], count)
        lock = await self._lock(staging, spec)
        forgotten = await asyncio.to_thread(_forgotten, staging.tree, lock)
        if forgotten:
            staging.ask_for(spec, *forgotten)
            await self._run(staging, spec, [], count)
            lock = await self._lock(staging, spec)
        say("checking")
        try:
            staging.ask_for(PackageSpec(lock.name, lock.version), *forgotten)
            return await staging.aside(_finish, staging, lock, self._bounds)
        except tree.TooMuch as error:
            raise failures.too_much(spec, error.of, self._bounds) from None
        except tree.Unsafe as error:
            logger.warning("installing %s: there is %s in it", spec, ascii(str(error)))
            raise PackageNotFound(f"{spec} has links that lead out of it.") from None

    async def _lock(self, staging: Staging, spec: PackageSpec) -> Lock:
        try:
            return await asyncio.to_thread(lockfile.read, staging.tree / "deno.lock", spec.name)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning("installing %s: its lock file cannot be used: %s", spec, error)
            raise PackageNotFound(f"{spec} could not be installed.") from None

    async def _run(self, staging: Staging, spec: PackageSpec, options: Sequence[str], on_line: Say) -> None:
        reached = await asyncio.to_thread(access, self._home)
        fenced = await asyncio.to_thread(fence.fence, staging.folder)
        environment = {**_ENVIRONMENT, **reached.variables, "DENO_DIR": str(staging.downloads)}
        if reached.certificates:
            environment["DENO_CERT"] = _certificates(staging, reached)
        configuration = _Configuration(staging.tree / ".npmrc", reached.npmrc)
        with configuration:
            ended = await command.run(
                [*fenced, runtime.locate(), "install", *options],
                cwd=staging.tree,
                env=environment,
                pass_fds=configuration.descriptors,
                watched=(staging.downloads, staging.tree),
                bounds=self._bounds,
                on_line=on_line,
            )
        if ended.code != 0 or ended.exceeded is not None:
            failure = failures.explain(spec, ended, self._bounds)
            first, cause = failures.complaint(ended.said)
            # That a package does not exist is its caller's affair; the rest may be the operator's.
            level = logging.WARNING if cause or ended.exceeded else logging.INFO
            logger.log(level, "%s It was: %s %s", failure.message, first, cause)
            raise failure


class _Configuration:
    """npm's configuration where the installer looks for it, but in memory: there are tokens in it."""

    def __init__(self, place: Path, text: str) -> None:
        self._place = place
        self.descriptors: tuple[int, ...] = ()
        if text:
            handle = os.memfd_create("hutch-npmrc")
            self.descriptors = (handle,)
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(text.encode())

    def __enter__(self) -> None:
        for handle in self.descriptors:
            self._place.symlink_to(f"/proc/self/fd/{handle}")

    def __exit__(self, *_: object) -> None:
        for handle in self.descriptors:
            self._place.unlink()
            os.close(handle)


class _Count:
    """Tells how many packages were asked for; of the lines themselves nothing is repeated."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._seen = 0

    def __call__(self, line: str) -> None:
        if line.startswith("Download ") and line.endswith(".tgz"):
            self._seen += 1
            self._say(f"downloading package {self._seen}")


def _certificates(staging: Staging, reached: Access) -> str:
    """The installer takes one file."""
    if len(reached.certificates) == 1:
        return reached.certificates[0]
    together = staging.folder / "certificates.pem"
    together.write_bytes(b"\n".join(Path(path).read_bytes() for path in reached.certificates))
    return str(together)


def _sow(downloads: Path, lock: Lock, seeds: Seeds) -> None:
    """Puts seeds where the installer would download them to."""
    wanted: dict[str, list[Locked]] = {}
    for package in lock.packages:
        wanted.setdefault(package.name, []).append(package)
    for name, folder in list(documents.folders(downloads)):
        for package in wanted.get(name, ()):
            source, target = seeds.get(package), folder / package.version
            if source is None:
                continue
            half = target.with_name(f"{package.version}.half")
            # One that is being removed just now, or whose programs nobody has marked, is downloaded.
            with contextlib.suppress(OSError):
                if tree.link(source, half) or not package.bin:
                    half.rename(target)


def unpacked(folder: Path, package: Locked) -> Path:
    """Where in a tree a package is."""
    modules = folder / "node_modules" / ".deno"
    return modules / f"{package.name.replace('/', '+')}@{package.version}" / "node_modules" / package.name


class _Peer(msgspec.Struct):
    optional: bool = False


class _Manifest(msgspec.Struct, rename="camel"):
    dependencies: dict[str, str] = {}
    peer_dependencies_meta: dict[str, _Peer] = {}


def _forgotten(folder: Path, lock: Lock) -> list[PackageSpec]:
    """Dependencies that are also optional peers: npm installs them, Deno does not unless the root asks."""
    found: dict[str, PackageSpec] = {}
    for package in lock.packages:
        place = unpacked(folder, package)
        # Manifests are their authors': what is none, or asks for what is no package, is passed over.
        with contextlib.suppress(OSError, msgspec.MsgspecError, InvalidPackage):
            manifest = msgspec.json.decode((place / "package.json").read_bytes(), type=_Manifest)
            for name, peer in manifest.peer_dependencies_meta.items():
                wanted = manifest.dependencies.get(name) if peer.optional else None
                siblings = place.parents[package.name.count("/")]
                if wanted is not None and not (siblings / name).exists():
                    found.setdefault(name, names.parse(name, wanted))
    return [each for name, each in found.items() if name != lock.name]


def _finish(staging: Staging, lock: Lock, bounds: command.Bounds) -> Installed:
    """Leaves what a guest is to see, says what it is, and seals it."""
    leftovers = staging.tree / "node_modules" / ".deno"
    for name in (".deno.lock", ".setup-cache.bin"):
        (leftovers / name).unlink(missing_ok=True)
    (staging.tree / "deno.json").unlink()
    (staging.tree / "deno.lock").write_bytes(lock.text)
    name = msgspec.json.encode(lock.name).decode()
    (staging.tree / "load.mjs").write_text(f"export default () => import({name});\n")
    size, files = tree.seal(staging.tree, bounds.size, bounds.files)
    key = lock.key
    if not lock.complete:
        # Nothing promises what is in it, so that has to be part of the name.
        key = hashlib.sha256((key + tree.digest(staging.tree)).encode()).hexdigest()[: len(key)]
    return Installed(lock, key, size, files)
