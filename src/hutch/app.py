"""Builds the whole from Settings: the only place that knows every room."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from hutch.kernel import Execution, Kernel
from hutch.metrics import RunCounters
from hutch.runs import log_run
from hutch.sandbox import selftest
from hutch.sandbox.jail import Jail
from hutch.sandbox.launcher import Launcher
from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import profile_for
from hutch.sandbox.verdict import Verdict
from hutch.session.host import Outcome
from hutch.settings import Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from hutch.doors.gate import Gate

logger = logging.getLogger("hutch")


class App:
    """A running Hutch: the kernel and all it stands on. It belongs to the event loop that made it."""

    def __init__(self, settings: Settings, jail: Jail, verdict: Verdict) -> None:
        self.settings = settings
        self.verdict = verdict
        self.counters = RunCounters()
        self._launcher = Launcher(settings, jail)
        self.pool = Pool(settings, self._launcher.launch)
        self.kernel = Kernel(settings, self.pool, self._record)

    @classmethod
    async def create(cls, settings: Settings) -> Self:
        """Proves the jail first, in a thread: that takes a second, and the loop has others to serve.

        Raises SandboxUnavailable when there is none of the wanted strength.
        """
        jail, verdict = await asyncio.to_thread(selftest.choose, settings)
        if verdict.isolation != "container":
            logger.warning(
                "the isolation is weak (%s): only Deno's permissions keep guests from this machine's files"
                " and network; `hutch doctor` says how to get containers",
                verdict.isolation,
            )
        return cls(settings, jail, verdict)

    async def warm_up(self) -> None:
        """For a server: have runners of both engines ready before the first request.

        Raises HutchError with the reason when none starts.
        """
        quickjs, deno = profile_for("quickjs"), profile_for("deno")
        self.pool.warm(quickjs, self.settings.quickjs_warm)
        self.pool.warm(deno, self.settings.deno_warm)
        await self.pool.warmed(quickjs)
        if self.settings.quickjs_warm and not self.pool.stats().warm.get("quickjs"):
            # Only who waits for a runner is told why there is none.
            self.pool.release(await self.pool.acquire(quickjs, "warm-up"))

    def web(self, gate: Gate) -> Starlette:
        """All doors that open onto HTTP."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException

        from hutch.doors import health, refusals
        from hutch.doors.execbox import websocket as execbox

        web = Starlette(
            routes=[
                *health.routes(self, gate),
                *execbox.routes(self.kernel, gate),
            ],
            exception_handlers={HTTPException: refusals.on_http_exception, Exception: refusals.on_fault},
        )
        web.router.default = refusals.nowhere
        web.router.redirect_slashes = False
        return web

    async def close(self) -> None:
        await self.pool.close()
        self._launcher.close()

    def _record(self, run_id: str, execution: Execution, outcome: Outcome, began: float) -> None:
        self.counters.count(execution, outcome)
        log_run(run_id, execution, outcome, began)
