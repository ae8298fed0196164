"""MCP server: lists tools, dispatches calls and notifies clients about changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar, cast

import anyio
import msgspec
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Tool,
)

from hutch._version import __version__
from hutch.errors import Busy, HutchError, UpstreamError
from hutch.http.auth import AccessControl, Caller
from hutch.http.errors import SHUTTING_DOWN
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.protocols.abilities.routes import AbilityServices
from hutch.protocols.mcp.abilities import INSTRUCTIONS, AbilityTools
from hutch.protocols.mcp.arguments import ContinueRun, DescribeTools, RunCode, SearchTools, parse_arguments
from hutch.protocols.mcp.interfaces import CALLER, McpServices
from hutch.protocols.mcp.notifications import HEARTBEAT_SECONDS, ProgressReporter, ToolChanges
from hutch.protocols.mcp.passthrough import (
    describe_tool,
    parse_passed_uri,
    passed_tools,
    wrap_resource,
    wrap_result,
)
from hutch.protocols.mcp.questions.elicitation import (
    TASKS_EXTENSION,
    Elicitor,
    caller_name,
    can_ask,
    is_asked_on_return,
)
from hutch.protocols.mcp.questions.held_calls import HeldCalls, HeldCallState, Questions
from hutch.protocols.mcp.questions.request_state import RequestStateMiddleware, StateCodec
from hutch.protocols.mcp.questions.suspended import SuspendedRunCalls, SuspendedRunState
from hutch.protocols.mcp.questions.tasks import TaskParams, Tasks, UpdateTaskParams
from hutch.protocols.mcp.results import text_result
from hutch.protocols.mcp.run_code import ClientRun, CodeRunner, SuspendedRun
from hutch.protocols.mcp.search import describe_tools, search_tools
from hutch.protocols.mcp.session_shares import SESSION_SHARE, SessionShare
from hutch.protocols.mcp.tools import CONTINUE_RUN, OWN_TOOL_NAMES, instructions, one_line, own_tools
from hutch.protocols.toolscript.gateway.catalog import Catalog, CatalogEntry
from hutch.protocols.toolscript.gateway.gateway import CompletedCall
from hutch.protocols.toolscript.gateway.search.index import similar_names
from hutch.session.json_value import well_formed
from hutch.session.run import Result
from hutch.telemetry.trace_context import TraceContext, parse_context, use_context
from hutch.text import printable

logger = logging.getLogger("hutch.mcp")

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

# Time that `initialize` waits for MCP servers that are still connecting.
INITIALIZE_SECONDS = 10.0
# Time that `server/discover` waits for MCP servers that are still connecting. It is shorter than
# INITIALIZE_SECONDS, because clients made with the SDK wait only 10 s for the response and then use an older
# protocol.
DISCOVER_SECONDS = 6.0
# Time for which clients may reuse the list of Hutch's own tools and the description of the server.
LIST_TTL_MS = 5_000
_CACHEABLE: tuple[CacheableMethod, ...] = ("tools/list", "server/discover")
# Scope that a user's key needs to run code with the operator's MCP servers.
SCRIPT_SCOPE = "toolscript"


class HutchMcpServer:
    """Handlers of the MCP server for the clients of one transport. Belongs to one event loop."""

    def __init__(
        self,
        hutch: McpServices,
        *,
        owner: str = "local",
        pass_through: bool = False,
        access: AccessControl | None = None,
        services: AbilityServices | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Without `access`, only the client can be asked for approvals. Without `services`, there are no
        abilities.
        """
        self._hutch = hutch
        self._owner = owner
        self._abilities = None if services is None else AbilityTools(services)
        self._gateway = hutch.gateway
        self._pass_through = pass_through
        self._access = access
        self._heartbeat_seconds = heartbeat_seconds
        self._runs = CodeRunner(hutch, owner)
        self._elicitor = Elicitor(self._runs, self._gateway.approvals, is_only_client=access is None)
        self.state_codec = StateCodec(hutch.storage.store)
        self._suspended = SuspendedRunCalls(hutch, self.state_codec)
        self.tasks = Tasks(self._suspended, self._task_result)
        self._held = HeldCalls()
        self._listed: tuple[Catalog, dict[str, CatalogEntry], list[Tool]] | None = None
        self._changes = ToolChanges()
        self.calls = 0
        """Number of calls in progress."""
        if self._gateway.approvals.ask is None:
            self._gateway.approvals.ask = self._elicitor
            self._gateway.on_input = self._elicitor.answer_tool
        if pass_through:
            self._gateway.on_change.append(self._changes.notify)
        self.server = _SdkServer(self)

    def close(self) -> None:
        self._held.close()
        self._runs.close()
        if self._pass_through:
            self._gateway.on_change.remove(self._changes.notify)
        self._changes.streams.close()
        if self._gateway.approvals.ask is self._elicitor:
            self._gateway.approvals.ask = self._gateway.on_input = None

    # --- tools ---

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        caller = self._caller(context)
        first = await self._tools(caller)
        if caller.identity is None or self._abilities is None:
            return ListToolsResult(tools=first)
        after = (params.cursor if params is not None else None) or ""
        tools, more = await self._abilities.page(caller.identity, after, await self._names(caller))
        return ListToolsResult(tools=tools if after else first + tools, next_cursor=more)

    async def _tools(self, caller: Caller) -> list[Tool]:
        """Returns all tools except abilities. Users need a key with SCRIPT_SCOPE for these tools."""
        if not caller.may(SCRIPT_SCOPE):
            return []
        own = own_tools(self._gateway.servers(), can_suspend=self.can_suspend)
        return own + (await self._passed_tools())[1] if self._pass_through else own

    async def _names(self, caller: Caller) -> list[str]:
        """Returns the names of the tools that `_tools` returns."""
        if not caller.may(SCRIPT_SCOPE):
            return []
        passed = (await self._passed_tools())[0] if self._pass_through else ()
        return [*OWN_TOOL_NAMES, *([CONTINUE_RUN] if self.can_suspend else []), *passed]

    @property
    def can_suspend(self) -> bool:
        """True if runs can be suspended, which happens only while they wait for approvals."""
        is_asked = "ask" in self._gateway.approvals.policy.rules.values()
        return is_asked and self._gateway.stored_approvals is not None

    def _caller(self, context: Context) -> Caller:
        """Returns the caller. Without authentication, the client is the operator."""
        caller = context.request.scope.get(CALLER) if context.request is not None else None
        return caller if isinstance(caller, Caller) else Caller(self._owner)

    def owner_of(self, context: Context) -> str:
        return self._caller(context).owner

    async def call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Calls a tool. Errors are returned as results, so that the model can read them. Only an unknown tool
        name is a protocol error.
        """
        try:
            with self._counted(), use_context(self._trace_context(context)):
                return await self._run_to_end(self._call(context, params))
        except HutchError as error:
            return text_result(str(error), failed=True)
        except MCPError:
            raise
        except Exception:
            logger.exception("a call of %s failed", printable(params.name[:200]))
            return text_result("Hutch failed; its log says why", failed=True)

    def _trace_context(self, context: Context) -> TraceContext | None:
        """Returns the trace of the client, from `_meta` (SEP-414) or else from the HTTP headers.

        Does not use the current trace context, because it may belong to an earlier request of the session.
        """
        if self._hutch.tracer is None:
            return None
        sent = parse_context((context.meta or {}).get)
        if sent is None and context.request is not None:
            sent = parse_context(context.request.headers.get)
        return sent

    async def _call(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        name, arguments = params.name, params.arguments
        caller = self._caller(context)
        names = await self._names(caller)
        if name in names and params.request_state is not None:
            return await self._retry(context, params)
        match name if name in names else None:
            case None:
                pass
            case "search_tools":
                return await search_tools(self._gateway, parse_arguments(SearchTools, arguments))
            case "describe_tools":
                return await describe_tools(self._gateway, parse_arguments(DescribeTools, arguments))
            case "run_code":
                return await self._run(context, parse_arguments(RunCode, arguments))
            case "continue_run":
                return await self._continue(context, parse_arguments(ContinueRun, arguments))
            case _:
                entry = (await self._passed_tools())[0].get(name)
                if entry is not None:
                    return await self._pass_through_call(context, entry, dict(arguments or {}))
        identity = caller.identity
        if identity is not None and self._abilities is not None:
            ability_id = await self._abilities.find(identity, name, names)
            if ability_id is not None:
                return await self._abilities.call(identity, ability_id, arguments or {})
        similar = similar_names(name, names, 1)
        hint = f" Did you mean {similar[0]}?" if similar else ""
        raise MCPError(INVALID_PARAMS, f"There is no tool {name[:200]!r}.{hint}")

    # --- code ---

    async def _run(self, context: Context, arguments: RunCode) -> CallToolResult | InputRequiredResult:
        async with self._reported_run(context) as run:
            outcome = await self._held.run(run, self._runs.run(arguments, run))
            return await self._finish(run, outcome, structured=arguments.format == "json")

    async def _continue(
        self, context: Context, arguments: ContinueRun
    ) -> CallToolResult | InputRequiredResult:
        if arguments.cancel:
            return await self._suspended.cancel(arguments.run_id, self._caller(context).owner)
        async with self._reported_run(context) as run:
            return await self._proceed(run, arguments.run_id, structured=arguments.format == "json")

    async def _retry(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Delivers the answers of the client's user to the waiting call, and continues that call."""
        try:
            state = msgspec.json.decode(params.request_state or "", type=SuspendedRunState | HeldCallState)
        except msgspec.ValidationError:
            message = "requestState: it comes from another version of Hutch. Call the tool again without it."
            raise MCPError(INVALID_PARAMS, message) from None
        responses = params.input_responses or {}
        structured = (params.arguments or {}).get("format") == "json"
        async with self._reported_run(context) as run:
            if isinstance(state, HeldCallState):
                outcome = await self._held.resume(self._held.find(state), run, responses)
                return await self._finish(run, outcome, structured=structured)
            refusal = await self._suspended.decide(state, responses, self._caller(context))
            return refusal or await self._proceed(run, state.run_id, structured=structured)

    async def _finish(
        self,
        run: ClientRun,
        outcome: CallToolResult | InputRequiredResult | SuspendedRun,
        *,
        structured: bool,
    ) -> CallToolResult | InputRequiredResult:
        if isinstance(outcome, SuspendedRun):
            return await self._proceed(run, outcome.run_id, structured=structured)
        return outcome

    async def _proceed(
        self, run: ClientRun, run_id: str, *, structured: bool
    ) -> CallToolResult | InputRequiredResult:
        return await self._held.run(run, self._wait_for_run(run, run_id, structured=structured))

    async def _wait_for_run(
        self, run: ClientRun, run_id: str, *, structured: bool
    ) -> CallToolResult | InputRequiredResult:
        owner = self._caller(run.client).owner
        # Check the owner before registering the client, because a registered client is asked for the
        # approvals that the run needs.
        await self._suspended.check_owner(run_id, owner)
        with self._runs.registered(run_id, run):
            outcome = await self._suspended.proceed(run, run_id, owner, structured=structured)
        if isinstance(outcome, Result):
            return await self._runs.continued_result(outcome, run.owner, structured=structured)
        if isinstance(outcome, SuspendedRun):
            # This cast is safe, because the SDK passes on results of an extension's type unchanged.
            return cast("CallToolResult", await self.tasks.created(run_id, owner))
        return outcome

    async def _task_result(self, result: Result, owner: str) -> CallToolResult:
        return await self._runs.continued_result(result, owner, structured=False)

    async def get_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        return await self.tasks.get(params.task_id, self._caller(context).owner)

    async def update_task(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        return await self.tasks.update(params.task_id, params.input_responses, self._caller(context))

    async def cancel_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        return await self.tasks.cancel(params.task_id, self._caller(context).owner)

    @contextlib.asynccontextmanager
    async def _reported_run(self, context: Context) -> AsyncIterator[ClientRun]:
        """Yields a run of the client and sends progress notifications for it."""
        started = asyncio.get_running_loop().time()
        run = self._client_run(context, lambda call, count: progress.report(_step_message(call, count)))

        def idle_message() -> str:
            asking = (self._runs.find(approval.run) for approval in self._gateway.approvals.pending())
            if any(found is not None and found.client is context for found in asking):
                return "waiting for an approval"
            seconds = asyncio.get_running_loop().time() - started
            calls = f", {run.calls.count} tool calls so far" if run.calls.count else ""
            return f"running for {seconds:.0f} s{calls}"

        progress = ProgressReporter(context.session, idle_message, self._heartbeat_seconds)
        async with progress:
            yield run

    def _client_run(self, context: Context, on_call: Callable[[CompletedCall, int], None]) -> ClientRun:
        caller = self._caller(context)
        run = ClientRun(context, on_call, caller.owner, can_ask=can_ask(context))
        run.name = caller_name(caller)
        if is_asked_on_return(context) and self._held.has_capacity(caller.owner):
            run.questions = Questions()
        return run

    # --- pass-through ---

    async def _passed_tools(self) -> tuple[dict[str, CatalogEntry], list[Tool]]:
        catalog = await self._gateway.catalog()
        if self._listed is None or self._listed[0] is not catalog:
            entries = passed_tools(catalog)
            tools = [describe_tool(name, entry) for name, entry in entries.items()]
            self._listed = catalog, entries, tools
        return self._listed[1:]

    async def _pass_through_call(
        self, context: Context, entry: CatalogEntry, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        run = self._client_run(context, lambda *_: None)
        return await self._held.run(run, self._passed_call(run, entry, arguments))

    async def _passed_call(
        self, run: ClientRun, entry: CatalogEntry, arguments: dict[str, Any]
    ) -> CallToolResult:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            await run.client.session.report_progress(progress, total, message)

        try:
            with self._registered_call(run) as run_id:
                result = await self._gateway.call(
                    entry.server, entry.tool, arguments, run=run_id, on_progress=report, whole=True
                )
        except UpstreamError as error:
            return text_result(error.message, failed=True)
        return wrap_result(entry, result)

    @contextlib.contextmanager
    def _registered_call(self, run: ClientRun) -> Iterator[str]:
        """Registers one call and yields its run id. If the call needs an approval, the client
        is found by this id.
        """
        run_id = f"mcp:{os.urandom(8).hex()}"
        with self._runs.registered(run_id, run):
            try:
                yield run_id
            finally:
                self._gateway.approvals.forget(run_id)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Returns the input schema of a passed-through tool. The SDK uses it to check the headers that repeat
        arguments.
        """
        if self._listed is None or name not in self._listed[1]:
            return None
        schema: Mapping[str, Any] | None = self._listed[1][name].input_schema
        return schema

    # --- resources of MCP servers ---

    async def list_resources(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        """Lists nothing, because clients only read resources that results link to."""
        return ListResourcesResult(resources=[])

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Reads a resource that a passed-through result links to."""
        try:
            with self._counted():
                return await self._run_to_end(self._read_resource(context, params.uri))
        except UpstreamError as error:
            raise MCPError(INTERNAL_ERROR, well_formed(error.message)) from None
        except HutchError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from None

    async def _read_resource(self, context: Context, uri: str) -> ReadResourceResult:
        parsed = parse_passed_uri(uri)
        reader = None
        if parsed is not None and self._caller(context).may(SCRIPT_SCOPE):
            catalog = await self._gateway.catalog()
            reader = next(
                (each for each in catalog if each.reads_resources and each.server == parsed[0]), None
            )
        if parsed is None or reader is None:
            raise MCPError(INVALID_PARAMS, f"There is no resource {well_formed(uri[:200])!r}.")
        with self._registered_call(ClientRun(context, lambda *_: None)) as run_id:
            value = await self._gateway.call(reader.server, reader.tool, {"uri": parsed[1]}, run=run_id)
        return wrap_resource(uri, value)

    # --- clients ---

    async def instructions_for(self, context: Context) -> str:
        """Returns the instructions for a client."""
        if not self._caller(context).may(SCRIPT_SCOPE):
            return INSTRUCTIONS
        catalog = None
        with contextlib.suppress(TimeoutError):
            is_probe = context.method == "server/discover"
            async with asyncio.timeout(DISCOVER_SECONDS if is_probe else INITIALIZE_SECONDS):
                catalog = await self._gateway.catalog()
        return instructions(self._gateway.servers(), catalog)

    @property
    def state_seconds(self) -> float:
        """Time for which a `requestState` is accepted. It is longer than the time for which runs are stored,
        so that the client of an expired run is told that the run has expired.
        """
        return 2 * self._hutch.settings.checkpoint_days * DAY_SECONDS

    @property
    def offers_abilities(self) -> bool:
        return self._abilities is not None

    @property
    def passes_through(self) -> bool:
        return self._pass_through

    @property
    def changes(self) -> ToolChanges | None:
        """Notifier for tool changes. None if the tools never change."""
        return self._changes if self._pass_through else None

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a call in progress. Raises Busy if the server is shutting down."""
        with contextlib.nullcontext() if self._access is None else self._access.track_request():
            self.calls += 1
            try:
                yield
            finally:
                self.calls -= 1

    async def _run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in a separate task. The SDK cancels repeatedly, but the task is cancelled only once and
        then awaited. Raises Busy when the drain timeout expires.
        """
        task = asyncio.ensure_future(work)
        expired = asyncio.ensure_future(self._drain_expired())
        try:
            await asyncio.wait({task, expired}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Busy(f"{SHUTTING_DOWN}.")
            return task.result()
        finally:
            expired.cancel()
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(task, return_exceptions=True)

    async def _drain_expired(self) -> None:
        await (asyncio.Event() if self._access is None else self._access.drain_expired).wait()


class _SdkServer(Server[Any]):
    """Server of the SDK with Hutch's handlers."""

    def __init__(self, mcp: HutchMcpServer) -> None:
        changes = mcp.changes
        super().__init__(
            "hutch",
            title="Hutch",
            version=__version__,
            get_tool_input_schema=mcp.input_schema,
            on_list_tools=mcp.list_tools,
            on_call_tool=mcp.call_tool,
            on_list_resources=mcp.list_resources if mcp.passes_through else None,
            on_read_resource=mcp.read_resource if mcp.passes_through else None,
            on_subscriptions_listen=None if changes is None else changes.streams,
            # Let clients cache the lists only if they contain nothing but Hutch's own tools. Passed-through
            # tools and abilities can change at any time.
            cache_hints=(
                None
                if mcp.passes_through or mcp.offers_abilities
                else dict.fromkeys(_CACHEABLE, CacheHint(LIST_TTL_MS))
            ),
        )
        self._tools_change = changes is not None
        if mcp.can_suspend:
            self.extensions[TASKS_EXTENSION] = {}
            self.add_request_handler("tasks/get", TaskParams, mcp.get_task)
            self.add_request_handler("tasks/update", UpdateTaskParams, mcp.update_task)
            self.add_request_handler("tasks/cancel", TaskParams, mcp.cancel_task)
        # Remove the SDK's only middleware, which is for OpenTelemetry. Even if Hutch exports no traces, this
        # middleware would make the client's trace context the current one, and the SDK would pass that
        # context on to MCP servers.
        self.middleware.clear()
        self.middleware.append(InitializeMiddleware(mcp))
        self.middleware.append(RequestStateMiddleware(mcp.state_codec, mcp.owner_of, mcp.state_seconds))
        if changes is not None:
            self.add_notification_handler("notifications/initialized", NotificationParams, changes.listen)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=self._tools_change)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class InitializeMiddleware:
    """Middleware for `initialize`: adds the current instructions to the response, and keeps the request's
    SessionShare reserved until the new session ends.
    """

    def __init__(self, mcp: HutchMcpServer) -> None:
        self._mcp = mcp

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method == "initialize" and ctx.request is not None:
            share = ctx.request.scope.get(SESSION_SHARE)
            if isinstance(share, SessionShare):
                share.keep_for(ctx.session)
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            return {**result, "instructions": await self._mcp.instructions_for(ctx)}
        return result


def _step_message(call: CompletedCall, count: int) -> str:
    outcome = "" if call.ok else ": failed"
    tool = f"{one_line(call.tool)} of {one_line(call.server)}"
    return f"call {count}: {tool}{outcome} ({call.seconds * 1000:.0f} ms)"
