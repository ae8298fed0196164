"""Caches Deno's compiled code of npm packages, which halves their import time.

A cache is filled by a process that only imports the package, without network access and without the caller's
environment. V8 executes cached code unchecked, so the package's code must not be able to write to the cache.
Therefore the cache of that process is in memory, limited in size, and the package's code may not write any
files. Later processes get copies of the cache. The host never parses the contents.
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
from hutch.kernel.execution import INTERNAL_PROTOCOL, Execution
from hutch.kernel.kernel import Kernel
from hutch.npm.packages import Package, PackageManager
from hutch.sandbox.jail.jail import Scratch
from hutch.sandbox.runner.profile import Profile
from hutch.settings import MIB

logger = logging.getLogger("hutch.tpmjs")

CACHE_DIR = "/cache"
# Number of uses after which a package is cached.
MIN_USES = 2
# Delay before the next attempt to fill the cache of a package.
RETRY_SECONDS = 300.0
IMPORT_MS = 10_000
MAX_CACHE_BYTES = 16 * MIB
# Names of Deno's databases and their write-ahead logs. Other files are not copied, because they may come from
# the package.
_DATABASE = re.compile(r"[a-z0-9_]{1,40}_cache_v\d{1,3}(-wal)?")
_CODE_DATABASE = re.compile(r"v8_code_cache_v\d+(-wal)?")


class CodeCache:
    """Fills the caches of used packages, one at a time, while the pool has free capacity."""

    def __init__(self, kernel: Kernel, packages: PackageManager, version: str) -> None:
        """`version` is the version of Deno. Caches of different versions are incompatible."""
        self._kernel = kernel
        self._packages = packages
        self._version = version
        self._uses: Counter[Path] = Counter()
        self._not_before: dict[Path, float] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, profile: Profile, package: Package) -> Profile:
        """Adds the cache of a package to the profile, even if the cache is still empty."""
        return _with_cache(profile, Scratch(CACHE_DIR, MAX_CACHE_BYTES, str(package.cache / self._version)))

    def note_use(self, package: Package, plain_profile: Callable[[], Profile]) -> None:
        """Counts a use of a package. Starts to fill its cache after MIN_USES uses. `plain_profile` returns a
        profile without data of a caller.
        """
        cache, now = package.cache, time.monotonic()
        self._uses[cache] += 1
        is_due = self._uses[cache] >= MIN_USES and now >= self._not_before.get(cache, 0.0)
        if not is_due or not self._kernel.has_capacity or (cache / self._version).exists():
            return
        self._not_before[cache] = now + RETRY_SECONDS
        task = asyncio.create_task(self._create(package, plain_profile()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, package: Package, plain_profile: Profile) -> None:
        cached = _with_cache(plain_profile, Scratch(CACHE_DIR, MAX_CACHE_BYTES))
        profile = msgspec.structs.replace(cached, may_write=False, keep_spare=False, max_uses=1)
        async with self._lock:
            try:
                with self._packages.new_cache(package, self._version) as folder:
                    await self._fill(package, profile, folder / self._version)
            except (HutchError, OSError) as error:
                logger.info("creating the code cache of %s failed: %s", package.name, error)

    async def _fill(self, package: Package, profile: Profile, folder: Path) -> None:
        execution = Execution(
            code='{"op":"import","name":""}',
            profile=profile,
            limits=self._kernel.limits({"timeout_ms": IMPORT_MS}, clamp=True),
            owner="",
            protocol=INTERNAL_PROTOCOL,
            label=f"code cache of {package.name}@{package.version}",
        )
        async with self._kernel.run_internal(execution) as (result, runner):
            if result.error is not None:
                raise HutchError(result.error.message)
            handle = runner.open_folder(CACHE_DIR)
        try:
            await runner.wait_exit()
            await asyncio.to_thread(_copy_databases, handle, folder)
        finally:
            os.close(handle)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _with_cache(profile: Profile, scratch: Scratch) -> Profile:
    """Adds the cache folder to a profile. Deno may use the folder, but the package's code may not."""
    return msgspec.structs.replace(
        profile,
        scratch=scratch,
        env=(*profile.env, ("DENO_DIR", CACHE_DIR)),
        permissions=(*profile.permissions, f"--deny-write={CACHE_DIR}", f"--deny-read={CACHE_DIR}"),
    )


def _copy_databases(handle: int, folder: Path) -> None:
    """Copies Deno's databases after the process has ended."""
    remaining, has_code = MAX_CACHE_BYTES, False
    folder.mkdir()
    for name in filter(_DATABASE.fullmatch, sorted(os.listdir(handle))):
        content = _read_database(handle, name, remaining)
        remaining -= len(content)
        has_code = has_code or (bool(content) and _CODE_DATABASE.fullmatch(name) is not None)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o444)
    if not has_code:
        raise HutchError("Deno wrote no code cache")


def _read_database(handle: int, name: str, max_bytes: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise HutchError(f"{name} is not a regular file, or is too large")
        return opened.read(max_bytes)
