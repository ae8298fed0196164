"""Composition root: builds every component from Settings, and closes them in order."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from hutch.app.jail_uplinks import JailUplinks
from hutch.app.storage import Storage
from hutch.kernel.content import RecordLevels
from hutch.kernel.kernel import Kernel
from hutch.kernel.metrics import RunCounters
from hutch.kernel.records import RunRecorder
from hutch.sandbox.jail.jail import Jail, bubblewrap, bubblewrap_missing
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.launcher import Launcher
from hutch.sandbox.runner.profile import profile_for
from hutch.sandbox.selftest import selftest
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.settings import Settings
from hutch.telemetry.counters import EgressCounters, InstallCounters
from hutch.telemetry.tracer import open_tracer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hutch.app.suspension import SuspendedRunsTask
    from hutch.cluster.front import Front
    from hutch.console.load_history import LoadHistory
    from hutch.errors import ExecutionError
    from hutch.http.auth import AccessControl
    from hutch.kernel.durable.stored_values import StoredValues
    from hutch.kernel.durable.suspended_runs import SuspendedRuns
    from hutch.kernel.execution import Execution
    from hutch.kernel.kernel import LoadSaved
    from hutch.kernel.sessions.sessions import Sessions
    from hutch.mcp_client.example_server import ExampleServers
    from hutch.mcp_client.servers import McpServers
    from hutch.npm.packages import PackageManager
    from hutch.protocols.mcp.http import McpEndpoint
    from hutch.protocols.rep.server.supervisor import FlowSupervisor
    from hutch.protocols.toolscript.checker.diagnostics import ScriptProblem
    from hutch.protocols.toolscript.durable.durable_scripts import DurableScripts
    from hutch.protocols.toolscript.execute import ScriptRunner
    from hutch.protocols.toolscript.gateway.gateway import Gateway
    from hutch.protocols.toolscript.gateway.local import LocalGateway
    from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals
    from hutch.protocols.tpmjs.execute import ToolExecutor
    from hutch.queue.queue import RunQueue
    from hutch.session.run import Result, RunHandle
    from hutch.session.tools.provider import Provider
    from hutch.settings.config_text import ConfigText
    from hutch.telemetry.tracer import Tracer

logger = logging.getLogger("hutch")


class App:
    """A running Hutch: the kernel and all other components. It belongs to the event loop that created it.

    It reads nothing from the current directory. `project_servers` returns the MCP configuration of a trusted
    project, and is called when the MCP servers are first needed.
    """

    def __init__(
        self,
        settings: Settings,
        jail: Jail,
        verdict: SelfTestResult,
        project_servers: Callable[[], ConfigText | None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`tracer` exports the traces of runs. The app closes only a tracer that `create` has opened."""
        self.settings = settings
        self._project_servers = project_servers
        self.verdict = verdict
        self.counters = RunCounters()
        self.installs = InstallCounters()
        self.egress = EgressCounters()
        self.jail = jail
        self._mcp: McpEndpoint | None = None
        self.durable_scripts: DurableScripts | None = None
        """Toolscripts that are stored while they wait for approvals. None if they wait in memory."""
        self._indexing: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._continuing: SuspendedRunsTask | None = None
        self.front: Front | None = None
        """Connection to the workers of the cluster, if this server belongs to a cluster."""
        self._uplinks = JailUplinks(self.egress)
        self._launcher = Launcher(settings, jail, self._uplinks.open)
        self.pool = Pool(settings, self._launcher.launch)
        levels = RecordLevels(
            settings.record, settings.record_protocols, settings.max_record_bytes, settings.record_keys
        )
        self._recorder = RunRecorder(self.counters, levels)
        self.kernel = Kernel(settings, self.pool, self._recorder)
        self.kernel.check_code = self._check_execution
        self.kernel.on_begin.append(self._recorder.begin)
        self.tracer = tracer
        self._own_tracer: Tracer | None = None
        if tracer is not None:
            from hutch.kernel.spans import RunTracing

            self._recorder.tracing = tracing = RunTracing(tracer)
            self.kernel.on_begin.append(tracing.begin)
            self.kernel.is_traced = True
        self.storage = Storage(settings, self.kernel, self._recorder, self.egress)
        self._recorder.owner_name = self.storage.owner_names.get
        self.kernel.fair_use.open_store = self.storage.store
        self.kernel.on_suspend = self._store_suspended
        self.kernel.on_checkpoint = self._store_waiting
        self.kernel.on_stored_end = self._end_stored
        self.kernel.fair_use.refusals = self.counters.refusals

    @classmethod
    async def create(
        cls,
        settings: Settings,
        *,
        project_servers: Callable[[], ConfigText | None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> Self:
        """Chooses the jail with the self-test and builds the app. The self-test runs in a thread, because it
        takes about a second. Several apps in one process can share a `tracer`. Without it, the app opens its
        own tracer if the environment configures traces.

        Raises SandboxUnavailable if the required isolation is not available.
        """
        jail, verdict = await asyncio.to_thread(selftest.choose_jail, settings)
        if verdict.isolation != "container":
            logger.warning(
                "the isolation is weak (%s): only Deno's permissions protect this machine's files"
                " and network from guests; %s`hutch doctor` says how to get containers",
                verdict.isolation,
                await asyncio.to_thread(_explain_bwrap),
            )
        own_tracer = await open_tracer() if tracer is None else None
        app = cls(settings, jail, verdict, project_servers, tracer or own_tracer)
        app._own_tracer = own_tracer
        return app

    async def join_cluster(self) -> None:
        """Connects to the cluster and places executions on its workers. Does nothing without the setting
        `cluster_url`. Raises ClusterUnavailable.
        """
        if self.settings.cluster_url is not None:
            from hutch.app.cluster import open_front

            self.front = await open_front(self)

    async def warm_up(self) -> None:
        """Starts quickjs and deno runners before the first request of a server.

        Raises HutchError with the reason if no quickjs runner starts.
        """
        quickjs, deno = profile_for("quickjs"), profile_for("deno")
        self.pool.keep_warm(quickjs, self.settings.quickjs_warm)
        self.pool.keep_warm(deno, self.settings.deno_warm)
        self._launcher.prepare_network()
        await self.pool.wait_warm(quickjs)
        if self.settings.quickjs_warm and not self.pool.stats().warm.get("quickjs"):
            # No runner has started. Lease a runner, because the lease raises the error of the failed start.
            async with self.pool.lease(quickjs, "warm-up"):
                pass

    @cached_property
    def suspended_runs(self) -> SuspendedRuns:
        from hutch.kernel.durable.suspended_runs import SuspendedRuns

        return SuspendedRuns(self.settings, self.kernel, self.storage.store)

    @cached_property
    def queue(self) -> RunQueue:
        """Asynchronous runs."""
        from hutch.queue.queue import RunQueue

        return RunQueue(self.settings, self.kernel, self.storage.store)

    @cached_property
    def values(self) -> StoredValues:
        """Large results of code that later calls can use."""
        from hutch.kernel.durable.stored_values import StoredValues

        return StoredValues(self.settings, self.storage.store)

    @cached_property
    def sessions(self) -> Sessions:
        """Stateful sessions."""
        from hutch.kernel.sessions.sessions import Sessions

        return Sessions(self.settings, self.kernel, self.storage.store)

    async def _store_suspended(self, execution: Execution, run: RunHandle) -> None:
        await self.suspended_runs.save(execution, run)

    async def _store_waiting(self, execution: Execution, run: RunHandle) -> LoadSaved:
        return await self.suspended_runs.save_waiting(execution, run)

    async def _end_stored(self, run: RunHandle, result: Result | None) -> bool:
        return await self.suspended_runs.end_stored(run, result)

    @cached_property
    def packages(self) -> PackageManager:
        from hutch.npm.packages import PackageManager

        return PackageManager(self.settings, counters=self.installs)

    @cached_property
    def tools(self) -> ToolExecutor:
        """Runs tools of npm packages."""
        from hutch.protocols.tpmjs.execute import ToolExecutor

        return ToolExecutor(self.kernel, self.packages, self.verdict.isolation, self.verdict.deno)

    @cached_property
    def mcp_servers(self) -> McpServers | ExampleServers:
        """Connections to the user's MCP servers. Raises ConfigError."""
        from hutch.mcp_client.config_file import load_config
        from hutch.mcp_client.servers import McpServers
        from hutch.vault.tokens import Tokens

        tokens = Tokens.at(self.settings.home_path, os.environ)
        paths = self.settings.mcp_config or None
        config = load_config(paths, project=None if paths else self._project_servers())
        if self.settings.example_tools and not config.servers:
            from hutch.mcp_client.example_server import ExampleServers

            return ExampleServers()
        return McpServers(config, self.settings, tokens=tokens)

    @cached_property
    def gateway(self) -> Gateway:
        from hutch.protocols.toolscript.gateway.approvals import ApprovalPolicy, Approvals
        from hutch.protocols.toolscript.gateway.gateway import Gateway

        approvals = Approvals(ApprovalPolicy(self.settings.approvals))
        approvals.on_wait_begin.append(self.kernel.pause_timeout)
        approvals.on_wait_end.append(self.kernel.resume_timeout)
        approvals.owner_of = self.kernel.owner_of
        gateway = Gateway(self.mcp_servers, approvals)
        self._recorder.on_end.append(lambda run: approvals.forget(run.id))
        return gateway

    def store_approvals(self) -> None:
        """Allows `POST /run` and MCP's `run_code` to suspend runs that wait for an approval."""
        from hutch.protocols.execbox import http_run
        from hutch.protocols.mcp import http as mcp
        from hutch.protocols.toolscript.durable import durable_script
        from hutch.protocols.toolscript.durable.durable_scripts import DurableScripts

        durable = frozenset((http_run.PROTOCOL, mcp.PROTOCOL))
        stored = self._suspend_for_approvals(durable)
        self.durable_scripts = scripts = DurableScripts(
            self.kernel,
            self.suspended_runs,
            self.gateway,
            stored,
            lambda: self.scripts,
            lambda: self.script_gateway,
            self.storage.store,
        )
        self.suspended_runs.background.runs_again = scripts
        self.suspended_runs.background.provide_tools = self.gateway_tools
        self.suspended_runs.background.continued_protocols = durable | {durable_script.PROTOCOL}

    def suspend_steps(self) -> SuspendedRuns:
        """Lets executions of flow steps be suspended while they wait for an approval. The flow step continues
        its suspended execution. Raises ConfigError.
        """
        from hutch.protocols.rep.kinds import code

        if self.gateway.stored_approvals is None:
            self._suspend_for_approvals(frozenset((code.PROTOCOL,)))
        return self.suspended_runs

    def _suspend_for_approvals(self, protocols: frozenset[str]) -> StoredApprovals:
        from hutch.app.suspension import suspend_for_approvals

        return suspend_for_approvals(self.gateway, self.suspended_runs, self.kernel, protocols)

    async def continue_suspended_runs(self) -> None:
        """Asks for the approvals of stored runs again, continues runs whose calls have a result, and ends
        runs that cannot be continued. Repeats this every few seconds, because other servers may use the
        store.
        """
        from hutch.app.suspension import SuspendedRunsTask

        self._continuing = SuspendedRunsTask(self.gateway, self.suspended_runs, self.kernel)
        await self._continuing.start()

    def start_gateway(self) -> None:
        """Starts to connect to the MCP servers and to index their tools, without waiting. With `mcp_eager`
        off, both happen on first use. Raises ConfigError.
        """
        gateway = self.gateway
        if self.settings.mcp_eager:
            self._indexing = asyncio.create_task(gateway.keep_indexed())

    @cached_property
    def gateway_app(self) -> ASGIApp:
        """The gateway as an ASGI app, for commands of this process."""
        from hutch.http.auth import AccessControl

        return self.gateway_http_app(AccessControl(self.settings, self.storage))

    @cached_property
    def script_gateway(self) -> LocalGateway:
        """The default gateway of scripts."""
        from hutch.protocols.toolscript.gateway.local import LocalGateway

        settings = self.settings
        return LocalGateway(self.gateway, port=settings.port, max_body_bytes=settings.max_body_bytes)

    @cached_property
    def scripts(self) -> ScriptRunner:
        """Runs toolscripts."""
        from hutch.protocols.toolscript.checker.checker import Checker
        from hutch.protocols.toolscript.execute import ScriptRunner

        return ScriptRunner(self.kernel, Checker(self.settings, self.jail), self.verdict.isolation)

    async def mcp_tools(self) -> tuple[list[Provider], dict[str, str]]:
        """Returns the tools of all MCP servers that are configured, and the names of the servers that are not
        connected. The reason for each such server is an empty text, because only the operator may see the
        reason.
        """
        from hutch.protocols.toolscript.providers import unavailable_servers

        return await self.gateway_tools(), dict.fromkeys(unavailable_servers(self.gateway), "")

    async def _check_execution(self, execution: Execution) -> ExecutionError | None:
        from hutch.protocols.toolscript.code_check import check_code

        return await check_code(self.scripts.checker, execution, strict=self.settings.script_strict)

    @cached_property
    def flows(self) -> FlowSupervisor:
        """Runs flows started over HTTP."""
        from hutch.protocols.rep.server.supervisor import FlowSupervisor

        return FlowSupervisor(self.settings, self.storage.store)

    def gateway_http_app(self, access: AccessControl) -> ASGIApp:
        """Returns the gateway alone as an ASGI app, for `hutch gateway start`."""
        from hutch.protocols.toolscript.gateway.routes import application

        return self._traced(application(self.gateway, access, self.settings))

    @cached_property
    def load_history(self) -> LoadHistory:
        from hutch.console.load_history import LoadHistory

        return LoadHistory(self.counters, self.pool)

    def http_app(self, access: AccessControl, setting_sources: Mapping[str, str] | None = None) -> ASGIApp:
        """Returns the ASGI app with the HTTP routes of all protocols and the web console.

        `setting_sources` maps each setting that does not have its default value to the place where it was
        set.
        """
        from hutch.app.routes import web_app
        from hutch.egress import policy
        from hutch.http.middleware.cors import Cors
        from hutch.http.middleware.run_headers import RunIdHeaders, note_run
        from hutch.protocols.mcp.http import McpEndpoint

        policy.check_settings(self.settings)
        self._mcp = McpEndpoint(self, access, services=self.storage)
        self._sampling = asyncio.create_task(self.load_history.sample_forever())
        if self.storage.stores_runs:
            self.store_approvals()
        web = web_app(self, self._mcp, access, setting_sources or {})
        self.kernel.on_begin.append(note_run)
        return Cors(self._traced(RunIdHeaders(web)))

    def _traced(self, web: ASGIApp) -> ASGIApp:
        if self.tracer is None:
            return web
        from hutch.http.middleware.run_headers import TraceHeaders

        return TraceHeaders(web)

    async def check_code(self, code: str) -> list[ScriptProblem]:
        declarations = await self.script_gateway.declarations()
        return await self.scripts.checker.check(code, declarations, strict=self.settings.script_strict)

    def record_state(self) -> dict[str, Any] | None:
        """Returns the state of run records for `/health`."""
        state = self.storage.record_queue
        if state is None:
            return None
        status = "ok" if state.failure is None else "waiting for the database"
        return {"status": status, "waiting": state.waiting, "dropped": state.dropped}

    async def metrics(self, *, is_ready: bool) -> bytes:
        """Returns the body of `/metrics`."""
        from hutch.app.metrics import server_metrics
        from hutch.kernel.metrics import exposition

        families = server_metrics(
            isolation=self.verdict.isolation,
            is_ready=is_ready,
            runs=self.counters,
            owner_name=self.storage.owner_names.get,
            pool=self.pool,
            installs=self.installs,
            egress=self.egress,
            records=self.storage.record_queue,
            spans=None if self.tracer is None else self.tracer.counters,
            cluster=None if self.front is None else self.front.load(),
            queue=await self.queue.monitor.stats() if self.storage.can_store else None,
        )
        return exposition(families)

    async def problems(self) -> dict[str, str]:
        """Returns the reasons why this server cannot work normally, by component."""
        found = {"sandbox": self.pool.problem, "store": await self.storage.problem()}
        if self.front is not None:
            found["cluster"] = self.front.problem
        return {name: reason for name, reason in found.items() if reason is not None}

    async def gateway_tools(self) -> list[Provider]:
        from hutch.protocols.toolscript.providers import tool_providers

        return tool_providers(await self.gateway.catalog(), self.gateway)

    async def drain(self, seconds: float) -> None:
        """Waits for running flows, approved calls and runs that continue in the background. The next start
        resumes flows that do not finish, and runs of code that wait for tools or timers.
        """
        if self.storage.stores_runs:
            self.kernel.store_waiting_runs()
        draining = [self.suspended_runs.background.drain(seconds)]
        if self.durable_scripts is not None:
            draining.append(self.durable_scripts.drain(seconds))
        if "queue" in self.__dict__:
            draining.append(self.queue.drain(seconds))
        if "gateway" in self.__dict__ and self.gateway.stored_approvals is not None:
            draining.append(self.gateway.stored_approvals.drain(seconds))
        if "flows" in self.__dict__:
            draining.append(self.flows.drain(seconds))
        await asyncio.gather(*draining)

    async def close(self) -> None:
        """Closes each component before the components that it depends on. If one fails to close, the others
        are closed anyway.
        """
        built = self.__dict__
        async with AsyncExitStack() as stack:
            if self._own_tracer is not None:
                stack.push_async_callback(self._own_tracer.close)
            stack.push_async_callback(self.storage.close)
            if "sessions" in built:
                stack.push_async_callback(self.sessions.close)
            if "suspended_runs" in built:
                stack.push_async_callback(self.suspended_runs.close)
            stack.push_async_callback(self._launcher.close)
            stack.push_async_callback(self._uplinks.close)
            if "gateway" in built and self.gateway.stored_approvals is not None:
                stack.push_async_callback(self.gateway.stored_approvals.close)
            if "mcp_servers" in built:
                stack.push_async_callback(self.mcp_servers.close)
            for task in (self._indexing, self._sampling):
                if task is not None:
                    stack.push_async_callback(_cancel, task)
            if self._continuing is not None:
                stack.push_async_callback(self._continuing.close)
            stack.push_async_callback(self.pool.close)
            if self.front is not None:
                stack.push_async_callback(self.front.close)
            if "scripts" in built:
                stack.push_async_callback(self.scripts.close)
            if self.durable_scripts is not None:
                stack.push_async_callback(self.durable_scripts.close)
            if "packages" in built:
                stack.push_async_callback(self.packages.close)
            if "tools" in built:
                stack.push_async_callback(self.tools.close)
            if "flows" in built:
                stack.push_async_callback(self.flows.close)
            if "queue" in built:
                stack.push_async_callback(self.queue.close)
            if self._mcp is not None:
                stack.push_async_callback(self._mcp.close)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _explain_bwrap() -> str:
    """Returns the beginning of a warning if HUTCH_BWRAP names no usable bubblewrap, otherwise an empty
    string.
    """
    if not os.environ.get("HUTCH_BWRAP") or bubblewrap() is not None:
        return ""
    return f"{bubblewrap_missing()[0].rstrip('.')}; "
