"""What Deno makes of a package's code, kept for processes that load it later: they need half the time for it.

Made by a process that does nothing but import the package, without network or anybody's environment. Code of
the package cannot write what is kept: only Deno itself can, whose permissions do not bind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from hutch.errors import HutchError
from hutch.kernel import Execution, Kernel
from hutch.npm import tree
from hutch.npm.shelf import Package, Shelf
from hutch.sandbox.jail import Mount
from hutch.sandbox.profile import Profile
from hutch.session.host import Limits
from hutch.settings import MIB

logger = logging.getLogger("hutch.tpmjs")

TARGET = "/cache"
# A package that is used once is not worth it.
USES = 2
MAX_BYTES = 64 * MIB
_LOOK_SECONDS = 0.1


class Caching:
    """Makes caches of packages that are used, one at a time, in the background."""

    def __init__(self, kernel: Kernel, shelf: Shelf, version: str) -> None:
        """`version` is Deno's: what one has made is of no use to another."""
        self._kernel = kernel
        self._shelf = shelf
        self._version = version
        self._uses: Counter[Path] = Counter()
        self._one = asyncio.Lock()
        self._working: set[asyncio.Task[None]] = set()

    def applied(self, profile: Profile, package: Package) -> Profile:
        """For a process that may use what there is, also if that is nothing yet."""
        if package.cache is None:
            return profile
        return self._with(profile, Mount(str(package.cache), TARGET))

    def used(self, package: Package, plain: Callable[[], Profile], limits: Limits) -> None:
        """A package was used. `plain` is how it is imported with nothing of anybody's."""
        if package.cache is None:
            return
        self._uses[package.cache] += 1
        if self._uses[package.cache] != USES or (package.cache / self._version).exists():
            return
        task = asyncio.create_task(self._make(package, plain(), limits))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _make(self, package: Package, plain: Profile, limits: Limits) -> None:
        async with self._one:
            try:
                with self._shelf.caching(package, self._version) as folder:
                    profile = self._with(plain, Mount(str(folder), TARGET, writable=True))
                    denied = (f"--deny-write={TARGET}", f"--deny-read={TARGET}")
                    permissions = (*plain.permissions, *denied)
                    profile = msgspec.structs.replace(profile, permissions=permissions, spared=False, uses=1)
                    # Only after a second use can Deno read its databases without writing to them.
                    for _ in range(2):
                        await self._run(profile, limits, folder)
            except (HutchError, OSError) as error:
                logger.info("no cache for %s: %s", package.name, error)

    async def _run(self, profile: Profile, limits: Limits, folder: Path) -> None:
        execution = Execution(
            code='{"op":"import","name":""}',
            profile=profile,
            limits=limits,
            owner="",
            door="tpmjs",
            recorded=False,
        )
        running = asyncio.create_task(self._kernel.run(execution))
        try:
            while not (await asyncio.wait({running}, timeout=_LOOK_SECONDS))[0]:
                if await asyncio.to_thread(tree.own_bytes, folder) > MAX_BYTES:
                    raise HutchError(f"it would take more than {MAX_BYTES} bytes")
            result = await running
            if result.error is not None:
                raise HutchError(result.error.message)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, HutchError):
                await running

    def _with(self, profile: Profile, mount: Mount) -> Profile:
        return msgspec.structs.replace(
            profile,
            mounts=(*profile.mounts, mount),
            env=(*profile.env, ("DENO_DIR", f"{TARGET}/{self._version}")),
        )

    async def close(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
