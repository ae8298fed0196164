"""Builds the whole from Settings: the only place that knows every room."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Self

from hutch.keeping import Keeping
from hutch.kernel import Execution, Kernel
from hutch.metrics import RunCounters
from hutch.runs import RunRecord, is_logged, log_record
from hutch.sandbox import jail as jails
from hutch.sandbox import selftest
from hutch.sandbox.jail import Jail
from hutch.sandbox.launcher import Launcher
from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import profile_for
from hutch.sandbox.verdict import Verdict
from hutch.session.host import Outcome
from hutch.settings import Settings
from hutch.ways import Ways

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hutch.doors.gate import Gate
    from hutch.doors.mcp.http import McpDoor
    from hutch.doors.rep.flows import Flows
    from hutch.doors.toolscript.execute import Scripts
    from hutch.doors.toolscript.gateway import Gateway
    from hutch.doors.toolscript.here import Here
    from hutch.doors.tpmjs.execute import Executor
    from hutch.npm.shelf import Shelf
    from hutch.upstream.servers import Upstreams

logger = logging.getLogger("hutch")


class App:
    """A running Hutch: the kernel and all it stands on. It belongs to the event loop that made it."""

    def __init__(self, settings: Settings, jail: Jail, verdict: Verdict) -> None:
        self.settings = settings
        self.verdict = verdict
        self.counters = RunCounters()
        self.jail = jail
        self._mcp: McpDoor | None = None
        self._ways = Ways()
        self._launcher = Launcher(settings, jail, self._ways.open)
        self.pool = Pool(settings, self._launcher.launch)
        self.kernel = Kernel(settings, self.pool, self._record)
        self.keeping = Keeping(settings, self.kernel)

    @classmethod
    async def create(cls, settings: Settings) -> Self:
        """Proves the jail first, in a thread: that takes a second, and the loop has others to serve.

        Raises SandboxUnavailable when there is none of the wanted strength.
        """
        jail, verdict = await asyncio.to_thread(selftest.choose, settings)
        if verdict.isolation != "container":
            logger.warning(
                "the isolation is weak (%s): only Deno's permissions keep guests from this machine's files"
                " and network; %s`hutch doctor` says how to get containers",
                verdict.isolation,
                await asyncio.to_thread(_misnamed),
            )
        return cls(settings, jail, verdict)

    async def warm_up(self) -> None:
        """For a server: have runners of both engines ready before the first request.

        Raises HutchError with the reason when none starts.
        """
        quickjs, deno = profile_for("quickjs"), profile_for("deno")
        self.pool.warm(quickjs, self.settings.quickjs_warm)
        self.pool.warm(deno, self.settings.deno_warm)
        self._launcher.prepare_network()
        await self.pool.warmed(quickjs)
        if self.settings.quickjs_warm and not self.pool.stats().warm.get("quickjs"):
            # Only who waits for a runner is told why there is none.
            self.pool.release(await self.pool.acquire(quickjs, "warm-up"))

    @cached_property
    def shelf(self) -> Shelf:
        from hutch.npm.shelf import Shelf

        return Shelf(self.settings)

    @cached_property
    def tools(self) -> Executor:
        """Runs the tools of npm packages."""
        from hutch.doors.tpmjs.execute import Executor

        return Executor(self.kernel, self.shelf, self.verdict.isolation, self.verdict.deno)

    @cached_property
    def upstreams(self) -> Upstreams:
        """The user's MCP servers. Raises ConfigError."""
        from hutch.upstream import config
        from hutch.upstream.servers import Upstreams
        from hutch.vault.tokens import Tokens

        tokens = Tokens.at(self.settings.home_path, os.environ)
        return Upstreams(config.load(self.settings.mcp_config or None), self.settings, tokens=tokens)

    @cached_property
    def gateway(self) -> Gateway:
        from hutch.doors.toolscript.approvals import Approvals, Policy
        from hutch.doors.toolscript.gateway import Gateway

        approvals = Approvals(Policy(self.settings.approvals))
        approvals.on_wait_begin.append(self.kernel.hold)
        approvals.on_wait_end.append(self.kernel.go_on)
        return Gateway(self.upstreams, approvals)

    @cached_property
    def gateway_app(self) -> ASGIApp:
        """The gateway as scripts see it."""
        from hutch.doors.gate import Gate

        return self.gateway_web(Gate(self.settings, self.keeping))

    @cached_property
    def world(self) -> Here:
        """What scripts can reach when nothing else is said."""
        from hutch.doors.toolscript.here import Here

        settings = self.settings
        return Here(self.gateway, self.gateway_app, port=settings.port, token=settings.api_key)

    @cached_property
    def scripts(self) -> Scripts:
        """Runs toolscripts."""
        from hutch.doors.toolscript.check import Checker
        from hutch.doors.toolscript.execute import Scripts

        return Scripts(self.kernel, Checker(self.settings, self.jail), self.verdict.isolation)

    @cached_property
    def flows(self) -> Flows:
        """Runs flows for whoever asks over HTTP."""
        from hutch.doors.rep.flows import Flows

        return Flows(self.settings, self.keeping.store)

    def gateway_web(self, gate: Gate) -> ASGIApp:
        """The gateway alone, for `hutch gateway start`."""
        from hutch.doors.toolscript.http import application

        return application(self.gateway, gate, self.settings)

    def web(self, gate: Gate) -> ASGIApp:
        """All doors that open onto HTTP."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException

        from hutch.doors import health, refusals
        from hutch.doors.abilities import http as abilities
        from hutch.doors.cors import Cors
        from hutch.doors.execbox import websocket as execbox
        from hutch.doors.mcp.http import McpDoor
        from hutch.doors.rep import http as rep
        from hutch.doors.toolscript import http as toolscript
        from hutch.doors.tpmjs import http as tpmjs
        from hutch.egress import policy

        policy.check(self.settings)

        self._mcp = McpDoor(self, gate, rooms=self.keeping)
        web = Starlette(
            routes=[
                *health.routes(self, gate),
                *execbox.routes(self.kernel, gate),
                *toolscript.routes(self.gateway, gate, self.settings),
                *self._mcp.routes(),
                *abilities.routes(self.keeping, gate),
                *rep.routes(self.flows, gate),
                *tpmjs.routes(self.tools, gate, self.settings, self.verdict, self.verdict.deno),
            ],
            exception_handlers={HTTPException: refusals.on_http_exception, Exception: refusals.on_fault},
        )
        web.router.default = refusals.nowhere
        web.router.redirect_slashes = False
        return Cors(web)

    async def drain(self, seconds: float) -> None:
        """Gives flows time to finish; those that do not are gone on with at the next start."""
        if "flows" in self.__dict__:
            await self.flows.drain(seconds)

    async def close(self) -> None:
        """Each comes before what it stands on, and whatever happens to one, the others are closed too."""
        made = self.__dict__
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.keeping.close)
            last_first.push_async_callback(self._launcher.close)
            last_first.push_async_callback(self._ways.close)
            if "upstreams" in made:
                last_first.push_async_callback(self.upstreams.close)
            last_first.push_async_callback(self.pool.close)
            if "scripts" in made:
                last_first.push_async_callback(self.scripts.close)
            if "shelf" in made:
                last_first.push_async_callback(self.shelf.close)
            if "tools" in made:
                last_first.push_async_callback(self.tools.close)
            if "flows" in made:
                last_first.push_async_callback(self.flows.close)
            if self._mcp is not None:
                last_first.push_async_callback(self._mcp.close)

    def _record(self, run_id: str, execution: Execution, outcome: Outcome, began: float) -> None:
        self.counters.count(execution, outcome)
        if "gateway" in self.__dict__:
            self.gateway.approvals.forget(run_id)
        if self.keeping.keeps_runs or is_logged():
            record = RunRecord.of(run_id, execution, outcome, began)
            log_record(record)
            self.keeping.record(record)


def _misnamed() -> str:
    """What is wrong with the bubblewrap that the environment names, if anything is."""
    if not os.environ.get("HUTCH_BWRAP") or jails.bubblewrap() is not None:
        return ""
    return f"{jails.no_bubblewrap()[0].rstrip('.')}; "
