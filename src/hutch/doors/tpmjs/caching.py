"""What Deno makes of a package's code, kept for processes that load it later: they need half the time for it.

Made by a process that does nothing but import the package, without network or anybody's environment. Its
cache is in memory and bounded, and no code of the package may write a file, there or anywhere: V8 runs what
is in a cache unchecked. Later processes get copies. The host itself understands none of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from hutch.errors import HutchError
from hutch.kernel import Kernel, new_run_id
from hutch.npm.shelf import Package, Shelf
from hutch.sandbox.jail import Scratch
from hutch.sandbox.process import RunnerProcess
from hutch.sandbox.profile import Profile
from hutch.session.host import Limits
from hutch.settings import MIB

logger = logging.getLogger("hutch.tpmjs")

TARGET = "/cache"
# A package that is used once is not worth it.
USES = 2
# After which a package without a cache, for whatever reason, is tried again.
RETRY_SECONDS = 300.0
IMPORT_MS = 10_000
MAX_BYTES = 16 * MIB
# Deno's databases, with what was written last. All else in its folder may be of the package's making.
_DATABASE = re.compile(r"[a-z0-9_]{1,40}_cache_v\d{1,3}(-wal)?")
_CODE = re.compile(r"v8_code_cache_v\d+(-wal)?")


class Caching:
    """Makes caches of packages that are used, one at a time, while there is room for it."""

    def __init__(self, kernel: Kernel, shelf: Shelf, version: str) -> None:
        """`version` is Deno's: what one has made is of no use to another."""
        self._kernel = kernel
        self._pool = kernel.pool
        self._shelf = shelf
        self._version = version
        self._uses: Counter[Path] = Counter()
        self._not_before: dict[Path, float] = {}
        self._one = asyncio.Lock()
        self._working: set[asyncio.Task[None]] = set()

    def applied(self, profile: Profile, package: Package) -> Profile:
        """For a process that may use what there is, also if that is nothing yet."""
        return _with(profile, Scratch(TARGET, MAX_BYTES, str(package.cache / self._version)))

    def used(self, package: Package, plain: Callable[[], Profile]) -> None:
        """A package was used. `plain` is how it is imported with nothing of anybody's."""
        cache, now = package.cache, time.monotonic()
        self._uses[cache] += 1
        is_due = self._uses[cache] >= USES and now >= self._not_before.get(cache, 0.0)
        if not is_due or not self._pool.has_room or (cache / self._version).exists():
            return
        self._not_before[cache] = now + RETRY_SECONDS
        task = asyncio.create_task(self._make(package, plain()))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _make(self, package: Package, plain: Profile) -> None:
        made = _with(plain, Scratch(TARGET, MAX_BYTES))
        profile = msgspec.structs.replace(made, writes=False, spared=False, uses=1)
        async with self._one:
            try:
                with self._shelf.caching(package, self._version) as folder:
                    await self._fill(profile, folder / self._version)
            except (HutchError, OSError) as error:
                logger.info("no cache for %s: %s", package.name, error)

    async def _fill(self, profile: Profile, folder: Path) -> None:
        limits = self._kernel.limits({"timeout_ms": IMPORT_MS}, clamp=True)
        runner = await self._pool.acquire(profile, "")
        assert isinstance(runner, RunnerProcess)
        try:
            handle = await _imported(runner, limits)
        finally:
            self._pool.release(runner)
        try:
            await runner.wait()
            await asyncio.to_thread(_take, handle, folder)
        finally:
            os.close(handle)

    async def close(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)


def _with(profile: Profile, scratch: Scratch) -> Profile:
    """With a cache that is Deno's, and nothing to the package."""
    return msgspec.structs.replace(
        profile,
        scratch=scratch,
        env=(*profile.env, ("DENO_DIR", TARGET)),
        permissions=(*profile.permissions, f"--deny-write={TARGET}", f"--deny-read={TARGET}"),
    )


async def _imported(runner: RunnerProcess, limits: Limits) -> int:
    """The folder of the cache, when the package has been imported."""
    session = runner.link.open(new_run_id(), '{"op":"import","name":""}', limits, ())
    try:
        runner.began(session)
        outcome = await session.wait()
        runner.ended(outcome, session)
    finally:
        runner.link.forget(session)
    if outcome.error is not None:
        raise HutchError(outcome.error.message)
    return runner.folder(TARGET)


def _take(handle: int, folder: Path) -> None:
    """Copies the databases of a folder whose processes are gone."""
    left, has_code = MAX_BYTES, False
    folder.mkdir()
    for name in filter(_DATABASE.fullmatch, sorted(os.listdir(handle))):
        content = _content(handle, name, left)
        left -= len(content)
        has_code = has_code or (bool(content) and _CODE.fullmatch(name) is not None)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o444)
    if not has_code:
        raise HutchError("Deno made nothing of it")


def _content(handle: int, name: str, most: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise HutchError(f"{name} is no file of Deno's, or too large")
        return opened.read(most)
