"""Assembles sandboxes from a launcher, a pool and a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.sandbox.jail.jail import Jail
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.launcher import Launcher
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.sandbox.selftest import selftest
from hutch.session.run import Result
from hutch.settings import Settings, load_settings


class AssembledSandbox:
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
async def open_sandbox(jail: Jail | None = None, **settings: Any) -> AsyncIterator[AssembledSandbox]:
    """Yields a sandbox in the given jail, or in the strongest available one."""
    chosen = load_settings({"quickjs_warm": 0, "deno_warm": 0, **settings})
    sandbox = AssembledSandbox(chosen, jail or selftest.choose_jail(chosen)[0])
    try:
        yield sandbox
    finally:
        await sandbox.pool.close()
        await sandbox.launcher.close()
