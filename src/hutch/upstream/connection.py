"""One connection to one server, from the first word to the last, in a task of its own.

Brings in the SDK, which takes a second: imported only when there is a server to speak with.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeAlias

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.client.subscriptions import ToolsListChanged, listen
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    ToolListChangedNotification,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from hutch._version import __version__
from hutch.errors import InvalidTool, UpstreamError
from hutch.session.schema import validator
from hutch.upstream import explain, http, listing, stdio
from hutch.upstream.bounds import Bounds, Meter
from hutch.upstream.direct import DirectCalls
from hutch.upstream.entries import Program, ServerConfig
from hutch.upstream.failures import NotSent, Unreachable
from hutch.upstream.process import ServerProcess
from hutch.upstream.results import unwrap
from hutch.upstream.tools import UpstreamTool
from hutch.upstream.watch import Watched

Progress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Hears how far a call is: the progress, the total if it is known, and a text."""

REFRESH_SECONDS = 0.2
LEAVE_SECONDS = 2.0
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


class Connection:
    """`on_tools` is called when the server's tools have changed, `on_lost` when it was lost, not closed."""

    def __init__(
        self,
        config: ServerConfig,
        protocol: Literal["stdio", "http", "sse"],
        *,
        environ: Mapping[str, str],
        bounds: Bounds,
        limit: int,
        auth: httpx2.Auth | None,
        on_tools: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.config = config
        self.title: str | None = None
        self.instructions: str | None = None
        self.tools: dict[str, UpstreamTool] = {}
        self.warnings: tuple[str, ...] = ()
        self.calls = 0
        """How many are under way."""
        self._protocol = protocol
        self._environ = environ
        self._bounds = bounds
        self._limit = limit
        self._auth = auth
        self._on_tools = on_tools
        self._on_lost = on_lost
        self._connect_seconds = config.connect_seconds or bounds.connect_seconds
        self._loop = asyncio.get_running_loop()
        self._scope = anyio.CancelScope()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._reason: Unreachable | None = None
        self._never_sent = False
        self._session: ClientSession | None = None
        self._dispatcher: JSONRPCDispatcher | None = None
        self._direct: DirectCalls | None = None
        self._watched: Watched | None = None
        self._process: ServerProcess | None = None
        self._checks: dict[str, Callable[[object], str | None] | None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        deaf = self._direct is not None and self._direct.closed
        return self._session is not None and not self._over.is_set() and not deaf

    @property
    def reason(self) -> Unreachable:
        """Why it is over."""
        return self._reason or Unreachable("the connection is over")

    @property
    def complaint(self) -> str:
        """The last line that the server wrote to stderr."""
        lines = self._process.complaint.splitlines() if self._process is not None else []
        return lines[-1].strip()[:300] if lines else ""

    # --- its life ---

    async def open(self) -> None:
        """Returns when the tools are known. Raises Unreachable."""
        self._task = self._loop.create_task(self._run(), name=f"upstream {self.config.name}")
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Leaves nothing behind that is ours."""
        self._on_lost = lambda _: None
        self._end(Unreachable("it is closed"))
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()

    async def _run(self) -> None:
        slow = self._loop.call_later(self._connect_seconds, self._too_slow)
        try:
            with self._scope:
                async with AsyncExitStack() as stack:
                    session = await self._connect(stack)
                    await self._introduce(session)
                    slow.cancel()
                    self._session = session
                    self._ready.set_result(None)
                    await self._serve(session)
        except Exception as error:
            self._failed(explain.root(error))
        finally:
            slow.cancel()
            self._finish()

    def _finish(self) -> None:
        self._over.set()
        self._session = None
        if self._reason is None:
            ended = self._process.described_end if self._process is not None else "it closed the connection"
            self._reason = Unreachable(ended)
        self._ended.set()
        if self._ready.done():
            self._on_lost(self)
            return
        self._ready.set_exception(self.reason)
        # Whoever opened may have gone.
        self._ready.exception()

    def _end(self, reason: Unreachable) -> None:
        """The first reason counts: what comes after it is its consequence."""
        if self._reason is None and not self._ended.is_set():
            self._reason = reason
        self._leave()

    def _leave(self) -> None:
        self._over.set()
        if not self._ready.done():
            self._scope.cancel()
        # A server that does not answer must not keep us from leaving it.
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + LEAVE_SECONDS)

    def _too_slow(self) -> None:
        message = f"it did not introduce itself within {self._connect_seconds:g} s"
        if self._watched is not None and self._watched.nonsense:
            message += f", but said {self._watched.nonsense[0]!r}"
        self._end(Unreachable(message))

    def _failed(self, error: BaseException) -> None:
        # Of several calls we do not know whose it was.
        self._never_sent |= self.calls == 1 and explain.never_sent(error)
        if not (self._process is not None and explain.is_consequence(error)):
            self._end(explain.unreachable(self.config, error))

    def _refused(self, status: int, words: str) -> None:
        self._never_sent |= self.calls == 1
        self._end(explain.refusal(self.config, status, words))

    def _silent(self, reason: str | None) -> None:
        """Nothing more comes. Why is known once we have left, if not now."""
        if reason is not None:
            self._end(Unreachable(reason))
        elif self._ready.done():
            self._leave()

    def _deaf(self, reason: str | None) -> None:
        """It reads nothing more. If it is ending, how, and what it said before, is known in a moment."""
        if reason is not None:
            self._end(Unreachable(reason))
        else:
            self._loop.call_later(LEAVE_SECONDS, self._still_deaf)

    def _still_deaf(self) -> None:
        if not self._over.is_set():
            self._end(Unreachable("it closed its input"))

    # --- connecting ---

    async def _connect(self, stack: AsyncExitStack) -> ClientSession:
        reach = self.config.reach
        if isinstance(reach, Program):
            started = stdio.connect(reach, self._environ, self._limit, self._deaf)
            read, write, self._direct, self._process = await stack.enter_async_context(started)
        else:
            assert self._protocol != "stdio"
            transport = http.connect(
                reach,
                self._protocol,
                auth=self._auth,
                limit=self._limit,
                connect_seconds=self._connect_seconds,
                on_refused=self._refused,
            )
            read, write = await stack.enter_async_context(transport)
        self._watched = Watched(read, Meter(self._bounds), self._silent)
        self._dispatcher = JSONRPCDispatcher(self._watched, write)
        session = ClientSession(
            dispatcher=self._dispatcher,
            message_handler=self._hear,
            client_info=Implementation(name="hutch", version=__version__),
        )
        return await stack.enter_async_context(session)

    async def _introduce(self, session: ClientSession) -> None:
        try:
            await session.initialize()
        except MCPError as error:
            # Servers that know only the protocol without a handshake, of 2026-07-28 and later.
            if error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                raise
            await session.discover()
        info = session.server_info
        self.title = (info.title or info.name) if info is not None else None
        self.instructions = session.instructions
        await self._list_tools(session)

    async def _list_tools(self, session: ClientSession) -> None:
        assert self._dispatcher is not None
        capabilities = session.server_capabilities
        if capabilities is not None and capabilities.tools is None:
            self.tools, self.warnings = {}, ("it has no tools",)
            return
        listed = await listing.fetch(self.config, session, self._dispatcher, self._bounds)
        self.tools, self.warnings = listed.tools, listed.warnings
        self._checks.clear()

    # --- what the server says by itself ---

    async def _serve(self, session: ClientSession) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow, session)
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                group.start_soon(self._listen, session)
            await self._over.wait()
            group.cancel_scope.cancel()

    async def _hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _listen(self, session: ClientSession) -> None:
        """Servers without a handshake tell of changes only whom they were asked to tell."""
        try:
            async with listen(session, tools_list_changed=True) as events:
                async for event in events:
                    if isinstance(event, ToolsListChanged):
                        self._changed.set()
        except (MCPError, RuntimeError, TimeoutError):
            self._warn("it does not tell of changes to its tools")

    async def _follow(self, session: ClientSession) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                with anyio.fail_after(self._connect_seconds):
                    await self._list_tools(session)
            except (MCPError, ValidationError, Unreachable, TimeoutError) as error:
                self._warn(f"its tools have changed, but cannot be listed: {explain.text(error)}")
            else:
                self._on_tools(self)
            # However often it changes, it is not asked more often than this.
            await anyio.sleep(REFRESH_SECONDS)

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings = listing.some((*self.warnings, warning))

    # --- calls ---

    async def call(self, tool: UpstreamTool, arguments: dict[str, Any], on_progress: Progress | None) -> Any:
        """What the tool gives, unwrapped. Raises UpstreamError, and NotSent if it may be tried again.

        Cancelled, it tells the server so.
        """
        if self._session is None or not self.alive:
            raise NotSent
        self.calls += 1
        try:
            result = await self._result(self._session, tool.name, arguments, on_progress)
        except MCPError as error:
            raise await self._call_failed(error, tool.name) from None
        except ValidationError as error:
            raise explain.failed_call(self.config, tool.name, error) from None
        finally:
            self.calls -= 1
        if isinstance(result, InputRequiredResult):
            message = "the tool asks its user for something, and here is nobody to ask"
            raise UpstreamError(self.config.name, tool.name, message, kind="rpc_error")
        value = unwrap(result, tool.output_schema is not None, server=self.config.name, tool=tool.name)
        if tool.output_schema is not None and result.structured_content is not None:
            self._check(tool, tool.output_schema, value)
        return value

    async def _result(
        self, session: ClientSession, tool: str, arguments: dict[str, Any], on_progress: Progress | None
    ) -> CallToolResult | InputRequiredResult:
        modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        if self._direct is not None and on_progress is None and not modern:
            given = await self._direct.call(tool, arguments)
            if isinstance(given, dict):
                return CallToolResult.model_validate(given, by_name=False)
            return CallToolResult.model_validate_json(bytes(given), by_name=False)
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        hear = None if on_progress is None else _awaitable(on_progress)
        return await session.send_request(request, _RESULT, progress_callback=hear)

    async def _call_failed(self, error: MCPError, tool: str) -> Exception:
        if explain.session_gone(error):
            self._end(Unreachable(error.message))
            return NotSent()
        if not explain.is_consequence(error):
            return explain.failed_call(self.config, tool, error)
        # Why is known only when all of it is over; which it may not be, if the server itself says so.
        with anyio.move_on_after(2 * LEAVE_SECONDS):
            await self._ended.wait()
        if self._never_sent:
            return NotSent()
        reason = self.reason if self._ended.is_set() else Unreachable(error.message)
        message = f"the server was lost before it answered: {reason.reason}"
        kind = "too_large" if reason.kind == "too_large" else "lost"
        return UpstreamError(self.config.name, tool, message, kind=kind)

    def _check(self, tool: UpstreamTool, schema: dict[str, Any], value: Any) -> None:
        if tool.name not in self._checks:
            try:
                self._checks[tool.name] = validator(schema)
            except InvalidTool:
                # There is nothing to hold it to.
                self._checks[tool.name] = None
        check = self._checks[tool.name]
        fault = check(value) if check is not None else None
        if fault is not None:
            message = f"the result does not fit the tool's own schema: {fault}"
            raise UpstreamError(self.config.name, tool.name, message, kind="invalid_result")

    async def look_alive(self) -> None:
        """Ends the connection if the server gives no sign of life; while it has other calls, it is busy."""
        if self._session is None or self.calls:
            return
        try:
            with anyio.fail_after(self._bounds.alive_seconds):
                if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    await self._session.list_tools()
                else:
                    await self._session.send_ping()
        except TimeoutError:
            if not self.calls:
                self._end(Unreachable("it hangs"))
        except (MCPError, ValidationError):
            # An error is a sign of life.
            pass


def _awaitable(hear: Progress) -> ProgressFnT:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told = hear(progress, total, message)
        if inspect.isawaitable(told):
            await told

    return heard
