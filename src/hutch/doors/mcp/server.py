"""The MCP server that is Hutch: its tools, what becomes of a call, and who hears that tools have changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
)

from hutch._version import __version__
from hutch.doors.abilities.needs import Rooms
from hutch.doors.gate import Gate, Visitor
from hutch.doors.marks import SHUTTING_DOWN, VISITOR
from hutch.doors.mcp import found, passing
from hutch.doors.mcp.abilities import INSTRUCTIONS, UserTools
from hutch.doors.mcp.answers import answer, ran_answer
from hutch.doors.mcp.arguments import DescribeTools, RunCode, SearchTools, read
from hutch.doors.mcp.asking import Asker
from hutch.doors.mcp.instructions import instructions, line
from hutch.doors.mcp.needs import Hutch
from hutch.doors.mcp.progress import HEARTBEAT_SECONDS, Progress
from hutch.doors.mcp.runs import Run, Runs
from hutch.doors.mcp.tools import NAMES, own_tools
from hutch.doors.toolscript.catalog import Catalog, Entry
from hutch.doors.toolscript.gateway import Called
from hutch.doors.toolscript.search import near_names
from hutch.errors import Busy, HutchError, UpstreamError

logger = logging.getLogger("hutch.mcp")

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

# How long a client that introduces itself waits for servers that are being connected to.
INTRODUCTION_SECONDS = 10.0
# The scope of a user's key that opens what is the operator's: code over all MCP servers.
SCRIPTS = "toolscript"
_SESSION = "mcp-session-id"


class Door:
    """For all clients of one transport. It belongs to the event loop that made it."""

    def __init__(
        self,
        hutch: Hutch,
        *,
        owner: str = "local",
        pass_through: bool = False,
        gate: Gate | None = None,
        rooms: Rooms | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Without a gate, nobody but the client can be asked for approvals; without rooms, nobody has
        abilities."""
        self._hutch = hutch
        self._owner = owner
        self._abilities = None if rooms is None else UserTools(rooms)
        self._gateway = hutch.gateway
        self._pass_through = pass_through
        self._gate = gate
        self._heartbeat_seconds = heartbeat_seconds
        self._runs = Runs(hutch, owner)
        self._asker = Asker(self._runs, alone=gate is None)
        self._listed: tuple[Catalog, dict[str, Entry], list[Tool]] | None = None
        self._changes = Changes()
        self.calls = 0
        """How many are under way."""
        if self._gateway.approvals.ask is None:
            self._gateway.approvals.ask = self._asker
        if pass_through:
            self._gateway.on_change.append(self._changes.tell)
        self.server = _Server(self)

    def close(self) -> None:
        self._runs.close()
        if self._pass_through:
            self._gateway.on_change.remove(self._changes.tell)
        self._changes.streams.close()
        if self._gateway.approvals.ask is self._asker:
            self._gateway.approvals.ask = None

    # --- tools ---

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        visitor = self._visitor(context)
        first = await self._tools(visitor)
        if visitor.caller is None or self._abilities is None:
            return ListToolsResult(tools=first)
        after = (params.cursor if params is not None else None) or ""
        tools, more = await self._abilities.page(visitor.caller, after, await self._names(visitor))
        return ListToolsResult(tools=tools if after else first + tools, next_cursor=more)

    async def _tools(self, visitor: Visitor) -> list[Tool]:
        """All but abilities. What the operator's MCP servers have is for users whose key says so."""
        if not visitor.may(SCRIPTS):
            return []
        own = own_tools(self._gateway.servers())
        return own + (await self._passed())[1] if self._pass_through else own

    async def _names(self, visitor: Visitor) -> list[str]:
        """Of these."""
        if not visitor.may(SCRIPTS):
            return []
        return [*NAMES, *(await self._passed())[0]] if self._pass_through else [*NAMES]

    def _visitor(self, context: Context) -> Visitor:
        """Who asks. Clients that are not behind a gate are the operator."""
        found = context.request.scope.get(VISITOR) if context.request is not None else None
        return found if isinstance(found, Visitor) else Visitor(self._owner)

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Whatever goes wrong with a call is its result, for a model to read; only names that nobody has
        are errors of the protocol."""
        try:
            with self._inside():
                return await self._to_the_end(self._call(context, params.name, params.arguments))
        except HutchError as error:
            return answer(str(error), failed=True)
        except MCPError:
            raise
        except Exception:
            logger.exception("a call of %s failed", params.name)
            return answer("Hutch failed; its log says why", failed=True)

    async def _call(self, context: Context, name: str, arguments: Mapping[str, Any] | None) -> CallToolResult:
        visitor = self._visitor(context)
        names = await self._names(visitor)
        match name if name in names else None:
            case None:
                pass
            case "search_tools":
                return await found.search(self._gateway, read(SearchTools, arguments))
            case "describe_tools":
                return await found.describe(self._gateway, read(DescribeTools, arguments))
            case "run_code":
                return await self._run(context, read(RunCode, arguments))
            case _:
                entry = (await self._passed())[0].get(name)
                if entry is not None:
                    return await self._pass(context, entry, dict(arguments or {}))
        caller = visitor.caller
        if caller is not None and self._abilities is not None:
            ability_id = await self._abilities.find(caller, name, names)
            if ability_id is not None:
                return await self._abilities.call(caller, ability_id, arguments or {})
        near = near_names(name, names, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise MCPError(INVALID_PARAMS, f"There is no tool {name[:200]!r}.{hint}")

    # --- code ---

    async def _run(self, context: Context, asked: RunCode) -> CallToolResult:
        began = asyncio.get_running_loop().time()
        owner = self._visitor(context).owner
        run = Run(context, lambda call, count: progress.say(_step(call, count)), owner)

        def still() -> str:
            if any(self._runs.known(each.run) is run for each in self._gateway.approvals.pending()):
                return "waiting for an approval"
            seconds = asyncio.get_running_loop().time() - began
            calls = f", {run.told} tool calls so far" if run.told else ""
            return f"running for {seconds:.0f} s{calls}"

        progress = Progress(context.session, still, self._heartbeat_seconds)
        async with progress:
            return ran_answer(await self._runs.run(asked, run))

    # --- tools that are passed through ---

    async def _passed(self) -> tuple[dict[str, Entry], list[Tool]]:
        catalog = await self._gateway.catalog()
        if self._listed is None or self._listed[0] is not catalog:
            entries = passing.names(catalog)
            tools = [passing.described(name, entry) for name, entry in entries.items()]
            self._listed = catalog, entries, tools
        return self._listed[1:]

    async def _pass(self, context: Context, entry: Entry, arguments: dict[str, Any]) -> CallToolResult:
        name = f"mcp:{os.urandom(8).hex()}"
        report = context.session.report_progress
        with self._runs.named(name, Run(context, lambda *_: None)):
            try:
                value = await self._gateway.call(
                    entry.server, entry.tool, arguments, run=name, on_progress=report
                )
            except UpstreamError as error:
                return answer(error.message, failed=True)
            finally:
                self._gateway.approvals.forget(name)
        return passing.passed(entry, value)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Of a tool that is passed through, for the headers that repeat its arguments."""
        if self._listed is None or name not in self._listed[1]:
            return None
        schema: Mapping[str, Any] | None = self._listed[1][name].input_schema
        return schema

    # --- clients ---

    async def introduce(self, context: Context) -> str:
        """What a client is told of us when it comes."""
        if not self._visitor(context).may(SCRIPTS):
            return INSTRUCTIONS
        catalog = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTRODUCTION_SECONDS):
                catalog = await self._gateway.catalog()
        return instructions(self._gateway.servers(), catalog)

    @property
    def changes(self) -> Changes | None:
        """None if our tools never change."""
        return self._changes if self._pass_through else None

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Raises Busy when the server is about to end."""
        with contextlib.nullcontext() if self._gate is None else self._gate.visit():
            self.calls += 1
            try:
                yield
            finally:
                self.calls -= 1

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """In a task of its own, which is cancelled once and then comes to its end: the client's cancellation
        comes again and again. Raises Busy when the server's time is up."""
        task = asyncio.ensure_future(work)
        cut = asyncio.ensure_future(self._cut())
        try:
            await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Busy(f"{SHUTTING_DOWN}.")
            return task.result()
        finally:
            cut.cancel()
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(task, return_exceptions=True)

    async def _cut(self) -> None:
        await (asyncio.Event() if self._gate is None else self._gate.time_is_up).wait()


class Changes:
    """Tells all who listen that the tools have changed."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.streams = ListenHandler(self._bus)
        """For clients that ask to be told; others are told unasked."""
        self._listening: dict[object, asyncio.Event] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self) -> None:
        for changed in self._listening.values():
            changed.set()
        task = asyncio.get_running_loop().create_task(self._bus.publish(ToolsListChanged()))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def listen(self, context: Context, _: NotificationParams) -> None:
        """From `notifications/initialized` on, for as long as the client is connected."""
        client = context.request.headers.get(_SESSION) if context.request is not None else None
        if client in self._listening:
            return
        changed = self._listening[client] = asyncio.Event()
        try:
            while True:
                await changed.wait()
                changed.clear()
                await context.session.send_tool_list_changed()
        finally:
            del self._listening[client]


class _Server(Server[Any]):
    """The SDK's, with what this door has to say."""

    def __init__(self, door: Door) -> None:
        changes = door.changes
        super().__init__(
            "hutch",
            title="Hutch",
            version=__version__,
            get_tool_input_schema=door.input_schema,
            on_list_tools=door.list_tools,
            on_call_tool=door.call_tool,
            on_subscriptions_listen=None if changes is None else changes.streams,
        )
        self._changing = changes is not None
        self.middleware.append(Introduction(door))
        if changes is not None:
            self.add_notification_handler("notifications/initialized", NotificationParams, changes.listen)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=self._changing)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class Introduction:
    """Tells a client that comes what is so by then."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            return {**result, "instructions": await self._door.introduce(ctx)}
        return result


def _step(call: Called, count: int) -> str:
    outcome = "" if call.ok else ": failed"
    return f"call {count}: {line(call.tool)} of {line(call.server)}{outcome} ({call.seconds * 1000:.0f} ms)"
