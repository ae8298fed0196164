"""One connection to one MCP server. The connection runs in its own task.

This module imports the SDK, which takes a second. Import it only when there is a server to connect to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.client.subscriptions import ToolsListChanged, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    ToolListChangedNotification,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from hutch._version import __version__
from hutch.errors import UpstreamError
from hutch.mcp_client import error_messages
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.errors import CallNotSent, ServerUnreachable
from hutch.mcp_client.limits import FloodMeter, ServerLimits
from hutch.mcp_client.liveness import WatchedStream
from hutch.mcp_client.tool_list import (
    ToolList,
    add_resource_reader,
    check_resource_uri,
    fetch_tools,
    limit_warnings,
)
from hutch.mcp_client.tool_requests import (
    AskForInput,
    ElicitingSession,
    InputAnswers,
    OutputChecks,
    ProgressCallback,
    answer_questions,
    call_tool,
    read_resource,
)
from hutch.mcp_client.tools import (
    McpTool,
    McpToolResult,
    content_blocks,
    tools_digest,
    unwrap_result,
)
from hutch.mcp_client.transports import http, stdio
from hutch.mcp_client.transports.long_messages import LongResults
from hutch.mcp_client.transports.process import ServerProcess
from hutch.mcp_client.transports.stdio import DirectCalls
from hutch.text import printable

MAX_INPUT_ROUNDS = 10
"""Maximum number of times that one call may ask for input."""
REFRESH_SECONDS = 0.2
CLOSE_SECONDS = 2.0
LOST_WHILE_ASKING = "the connection was lost while the user was asked"


class McpConnection:
    """Connection to a server. `on_tools_changed` is called when the server's tools have changed, `on_lost`
    when the connection is lost.
    """

    def __init__(
        self,
        config: ServerConfig,
        protocol: Literal["stdio", "http", "sse"],
        *,
        environ: Mapping[str, str],
        limits: ServerLimits,
        max_message_bytes: int,
        auth: httpx2.Auth | None,
        on_tools_changed: Callable[[McpConnection], None],
        on_lost: Callable[[McpConnection], None],
    ) -> None:
        self.config = config
        self.title: str | None = None
        self.instructions: str | None = None
        self.tools: dict[str, McpTool] = {}
        self.digest = ""
        """Digest of the tools."""
        self.warnings: tuple[str, ...] = ()
        self.calls = 0
        """Number of calls in progress."""
        self._protocol = protocol
        self._environ = environ
        self._limits = limits
        self._max_message_bytes = max_message_bytes
        self._auth = auth
        self._on_tools_changed = on_tools_changed
        self._on_lost = on_lost
        self._connect_seconds = config.connect_seconds or limits.connect_seconds
        self._loop = asyncio.get_running_loop()
        self._scope = anyio.CancelScope()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._tools_changed = asyncio.Event()
        self._reason: ServerUnreachable | None = None
        self._never_sent = False
        self._output_ended = False
        self._posts_expected = 0
        """Number of POSTs over SSE that the server has not answered yet."""
        self._session: ClientSession | None = None
        self._dispatcher: JSONRPCDispatcher | None = None
        self._direct: DirectCalls | None = None
        self._stream: WatchedStream | None = None
        self._process: ServerProcess | None = None
        self._output_checks = OutputChecks(config.name)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        if self._session is None or self._closing.is_set() or self._output_ended:
            return False
        return self._direct is None or not self._direct.is_closed

    @property
    def reason(self) -> ServerUnreachable:
        return self._reason or ServerUnreachable("the connection is closed")

    @property
    def stderr_tail(self) -> str:
        """Last line that the server wrote to stderr."""
        lines = self._process.stderr_tail.splitlines() if self._process is not None else []
        return printable(lines[-1].strip()[:300]) if lines else ""

    # --- lifecycle ---

    async def open(self) -> None:
        """Connects and lists the tools. Raises ServerUnreachable."""
        self._task = self._loop.create_task(self._run(), name=f"mcp server {self.config.name}")
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connection and waits until the server's process has ended."""
        self._on_lost = lambda _: None
        self._end(ServerUnreachable("it is closed"))
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await self._closed.wait()

    async def _run(self) -> None:
        timeout = self._loop.call_later(self._connect_seconds, self._on_connect_timeout)
        try:
            with self._scope:
                async with AsyncExitStack() as stack:
                    session = await self._connect(stack)
                    await self._handshake(session)
                    timeout.cancel()
                    self._session = session
                    self._ready.set_result(None)
                    await self._serve(session)
        except Exception as error:
            self._on_error(error_messages.root_cause(error))
        finally:
            timeout.cancel()
            self._finish()

    def _finish(self) -> None:
        self._closing.set()
        self._session = None
        if self._reason is None:
            description = (
                self._process.exit_description if self._process is not None else "it closed the connection"
            )
            self._reason = ServerUnreachable(description)
        self._closed.set()
        if self._ready.done():
            self._on_lost(self)
            return
        self._ready.set_exception(self.reason)
        # Mark the exception as retrieved, because the task that called `open` may have been cancelled.
        self._ready.exception()

    def _end(self, reason: ServerUnreachable) -> None:
        """Records the reason and closes the connection. Only the first reason is kept, because later errors
        are consequences of the first one.
        """
        if self._reason is None and not self._closed.is_set():
            self._reason = reason
        self._shut_down()

    def _shut_down(self) -> None:
        self._closing.set()
        if not self._ready.done():
            self._scope.cancel()
        # Limit the time of the shutdown, because the server may not respond.
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + CLOSE_SECONDS)

    def _on_connect_timeout(self) -> None:
        message = f"it did not initialize within {self._connect_seconds:g} s"
        if self._stream is not None and self._stream.invalid:
            message += f", but sent {self._stream.invalid[0]!r}"
        self._end(ServerUnreachable(message))

    def _on_error(self, error: BaseException) -> None:
        # The error does not say which call failed. So it shows that a call was not sent only if just one call
        # is in progress.
        self._never_sent |= self.calls == 1 and error_messages.never_sent(error)
        if not (self._process is not None and error_messages.is_consequence(error)):
            self._end(error_messages.unreachable_error(self.config, error))

    def _on_post_answered(self, status: int, status_line: str) -> None:
        """Handles the answer to a POST over SSE. The result of the call arrives in the event stream."""
        self._posts_expected = max(0, self._posts_expected - 1)
        if status >= 400:
            self._never_sent |= self.calls == 1
            self._end(error_messages.refusal_error(self.config, status, status_line))
        elif self._output_ended and self._posts_expected == 0:
            self._shut_down()

    def _on_output_end(self, reason: str | None) -> None:
        """Handles EOF on the server's output. If there is no reason, shuts down first and finds the reason
        afterwards, for example from the exit code.
        """
        self._output_ended = True
        if reason is not None:
            self._end(ServerUnreachable(reason))
        elif self._ready.done() and self._posts_expected > 0:
            # Wait for the answer to the POST, because it tells whether the server has received the call. If
            # the server was restarted, it refuses the call, and the call can be repeated.
            self._loop.call_later(CLOSE_SECONDS, self._shut_down)
        elif self._ready.done():
            self._shut_down()

    def _on_input_closed(self, reason: str | None) -> None:
        """Called when the server has closed its input. If there is no reason, the server is probably exiting.
        Then this method waits a moment for the server's last messages and exit code.
        """
        if reason is not None:
            self._end(ServerUnreachable(reason))
        else:
            self._loop.call_later(CLOSE_SECONDS, self._end_without_input)

    def _end_without_input(self) -> None:
        if not self._closing.is_set():
            self._end(ServerUnreachable("it closed its input"))

    # --- connecting ---

    async def _connect(self, stack: AsyncExitStack) -> ClientSession:
        config = self.config.transport
        results = LongResults()
        if isinstance(config, StdioConfig):
            streams = stdio.connect(config, self._environ, self._max_message_bytes, self._on_input_closed)
            read, write, self._direct, self._process = await stack.enter_async_context(streams)
        else:
            assert self._protocol != "stdio"
            transport = http.connect(
                config,
                self._protocol,
                auth=self._auth,
                max_message_bytes=self._max_message_bytes,
                connect_seconds=self._connect_seconds,
                results=results,
                on_post_answered=self._on_post_answered,
            )
            read, write = await stack.enter_async_context(transport)
        self._stream = WatchedStream(read, FloodMeter(self._limits), results, self._on_output_end)
        self._dispatcher = JSONRPCDispatcher(self._stream, write)
        session = ElicitingSession(
            dispatcher=self._dispatcher,
            message_handler=self._on_message,
            client_info=Implementation(name="hutch", version=__version__),
        )
        return await stack.enter_async_context(session)

    async def _handshake(self, session: ClientSession) -> None:
        try:
            await session.initialize()
        except MCPError as error:
            # Servers that support only the protocol without a handshake (2026-07-28 and later) answer with
            # one of these errors.
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
            tool_list = ToolList({}, ("it has no tools",))
        else:
            tool_list = await fetch_tools(self.config, session, self._dispatcher, self._limits)
        if capabilities is not None and capabilities.resources is not None:
            add_resource_reader(self.config, tool_list.tools)
        # Compute the digest in a thread, because a server may have thousands of tools, and change them often.
        self.digest = await asyncio.to_thread(tools_digest, tool_list.tools.values())
        self.tools, self.warnings = tool_list.tools, tool_list.warnings
        self._output_checks.clear()

    # --- notifications ---

    async def _serve(self, session: ClientSession) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._refresh_tools, session)
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                group.start_soon(self._subscribe, session)
            await self._closing.wait()
            group.cancel_scope.cancel()

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools_changed.set()

    async def _subscribe(self, session: ClientSession) -> None:
        """Subscribes to tool changes. Servers that use the protocol without a handshake notify only
        subscribers.
        """
        try:
            async with listen(session, tools_list_changed=True) as events:
                async for event in events:
                    if isinstance(event, ToolsListChanged):
                        self._tools_changed.set()
        except (MCPError, RuntimeError, TimeoutError):
            self._warn("it does not report changes of its tools")

    async def _refresh_tools(self, session: ClientSession) -> None:
        while True:
            await self._tools_changed.wait()
            self._tools_changed.clear()
            try:
                with anyio.fail_after(self._connect_seconds):
                    await self._list_tools(session)
            except (MCPError, ValidationError, ServerUnreachable, TimeoutError) as error:
                self._warn(f"its tools have changed, but cannot be listed: {error_messages.one_line(error)}")
            else:
                self._on_tools_changed(self)
            # Limit how often the tools are listed, because a server may report changes all the time.
            await anyio.sleep(REFRESH_SECONDS)

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings = limit_warnings((*self.warnings, warning))

    # --- calls ---

    async def call(
        self,
        tool: McpTool,
        arguments: dict[str, Any],
        on_progress: ProgressCallback | None,
        *,
        whole: bool = False,
        on_input: AskForInput | None = None,
    ) -> Any:
        """Calls a tool and returns the unwrapped result, or an McpToolResult if `whole`. Notifies the server
        if cancelled. `on_input` answers the questions of the tool.

        Raises UpstreamError, or CallNotSent if the call may be repeated.
        """
        if tool.reads_resources:
            check_resource_uri(tool, arguments)
        if self._session is None or not self.is_alive:
            raise CallNotSent
        self.calls += 1
        try:
            result = await self._send(self._session, tool, arguments, on_progress)
            for _ in range(MAX_INPUT_ROUNDS):
                if not isinstance(result, InputRequiredResult) or on_input is None:
                    break
                answers = await answer_questions(result, on_input)
                if self._session is None:
                    raise UpstreamError(self.config.name, tool.name, LOST_WHILE_ASKING, kind="lost")
                result = await self._send(self._session, tool, arguments, on_progress, answers)
        except MCPError as error:
            raise await self._call_failed(error, tool.name) from None
        except ValidationError as error:
            raise error_messages.failed_call(self.config, tool.name, error) from None
        finally:
            self.calls -= 1
        if isinstance(result, InputRequiredResult):
            message = (
                "the tool asks the user for input, which is not supported here"
                if on_input is None
                else f"the tool asked for input more than {MAX_INPUT_ROUNDS} times"
            )
            raise UpstreamError(self.config.name, tool.name, message, kind="rpc_error")
        value = await unwrap_result(
            result, tool.output_schema is not None, server=self.config.name, tool=tool.name
        )
        if tool.output_schema is not None and result.structured_content is not None:
            self._output_checks.check(tool, tool.output_schema, value)
        return McpToolResult(value, content_blocks(result), result.structured_content) if whole else value

    async def _send(
        self,
        session: ClientSession,
        tool: McpTool,
        arguments: dict[str, Any],
        on_progress: ProgressCallback | None,
        retry: InputAnswers | None = None,
    ) -> CallToolResult | InputRequiredResult:
        if self._protocol == "sse":
            self._posts_expected += 1
        if tool.reads_resources:
            return await read_resource(session, arguments["uri"], retry)
        return await call_tool(session, self._direct, tool.name, arguments, on_progress, retry)

    async def _call_failed(self, error: MCPError, tool: str) -> Exception:
        if error_messages.is_session_lost(error):
            self._end(ServerUnreachable(error.message))
            return CallNotSent()
        if not error_messages.is_consequence(error):
            return error_messages.failed_call(self.config, tool, error)
        # Either the connection was lost, and the reason is known after the shutdown. Or the server itself has
        # sent this error; then there is no shutdown, and the wait times out.
        with anyio.move_on_after(2 * CLOSE_SECONDS):
            await self._closed.wait()
        if self._never_sent:
            return CallNotSent()
        reason = self.reason if self._closed.is_set() else ServerUnreachable(error.message)
        message = f"the server was lost before it answered: {reason.reason}"
        kind = "too_large" if reason.kind == "too_large" else "lost"
        return UpstreamError(self.config.name, tool, message, kind=kind)

    async def check_alive(self) -> None:
        """Ends the connection if the server does not respond. Does not check a server while other calls are
        in progress.
        """
        if self._session is None or self.calls:
            return
        try:
            with anyio.fail_after(self._limits.liveness_seconds):
                if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    await self._session.list_tools()
                else:
                    await self._session.send_ping()
        except TimeoutError:
            if not self.calls:
                self._end(ServerUnreachable("it hangs"))
        except (MCPError, ValidationError):
            # An error response also shows that the server is alive.
            pass
