"""Sandboxes put together by hand, for tests of their parts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hutch.kernel import Execution, Kernel, Result
from hutch.sandbox import selftest
from hutch.sandbox.jail import Jail
from hutch.sandbox.launcher import Launcher
from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import Profile, profile_for
from hutch.settings import Settings, load


class Place:
    """A launcher, a pool and a kernel in one jail."""

    def __init__(self, settings: Settings, jail: Jail) -> None:
        self.settings = settings
        self.launcher = Launcher(settings, jail)
        self.pool = Pool(settings, self.launcher.launch)
        self.kernel = Kernel(settings, self.pool, lambda *_: None)

    async def run(
        self, code: str, engine: str | Profile = "quickjs", *, owner: str = "default", **limits: Any
    ) -> Result:
        profile = engine if isinstance(engine, Profile) else profile_for(engine)
        return await self.kernel.run(
            Execution(code=code, profile=profile, limits=self.kernel.limits(limits), owner=owner)
        )


@contextlib.asynccontextmanager
async def place(jail: Jail | None = None, **settings: Any) -> AsyncIterator[Place]:
    """A sandbox in the jail given, or in the strongest there is."""
    chosen = load({"quickjs_warm": 0, "deno_warm": 0, **settings})
    made = Place(chosen, jail or selftest.choose(chosen)[0])
    try:
        yield made
    finally:
        await made.pool.close()
        await made.launcher.close()
