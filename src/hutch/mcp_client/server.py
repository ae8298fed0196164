"""One MCP server, which is connected on demand and reconnected when the connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hutch.errors import UpstreamError, VaultError
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.errors import CallNotSent, ServerUnreachable
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.tools import McpTool, ServerState, ServerStatus, argument_problem
from hutch.text import did_you_mean

if TYPE_CHECKING:
    from httpx2 import Auth
    from mcp.types import InputRequests, InputResponses

    from hutch.mcp_client.connection import McpConnection
    from hutch.mcp_client.tool_requests import AskForInput, ProgressCallback
    from hutch.vault.tokens import Tokens

logger = logging.getLogger("hutch.mcp_client")

# Status codes with which servers that only support SSE reject streamable HTTP.
_SSE_ONLY_STATUSES = (400, 404, 405, 406, 415)


async def connect(
    config: ServerConfig,
    *,
    environ: Mapping[str, str],
    limits: ServerLimits,
    max_message_bytes: int,
    auth: Auth | None,
    on_tools_changed: Callable[[McpConnection], None] = lambda _: None,
    on_lost: Callable[[McpConnection], None] = lambda _: None,
) -> McpConnection:
    """Connects with the first protocol that the server supports. Raises ServerUnreachable."""
    from hutch.mcp_client.connection import McpConnection

    protocols = _protocols(config)
    for number, protocol in enumerate(protocols, 1):
        connection = McpConnection(
            config,
            protocol,
            environ=environ,
            limits=limits,
            max_message_bytes=max_message_bytes,
            auth=auth,
            on_tools_changed=on_tools_changed,
            on_lost=on_lost,
        )
        try:
            await connection.open()
            return connection
        except ServerUnreachable as failure:
            failure.stderr_tail = connection.stderr_tail
            if number == len(protocols) or failure.status not in _SSE_ONLY_STATUSES:
                raise
    raise AssertionError("the last protocol returned or raised")


def _protocols(config: ServerConfig) -> tuple[Literal["stdio", "http", "sse"], ...]:
    transport = config.transport
    if isinstance(transport, StdioConfig):
        return ("stdio",)
    return ("http", "sse") if transport.protocol == "either" else (transport.protocol,)


class McpServer:
    """A configured server and its connection. `on_change` is called when the tools have changed."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        environ: Mapping[str, str],
        limits: ServerLimits,
        max_message_bytes: int,
        tokens: Tokens | None,
        on_change: Callable[[], None],
    ) -> None:
        self.config = config
        self.tools: dict[str, McpTool] = {}
        """Tools of the server. They are kept while the server is disconnected."""
        self.digest = ""
        """Digest of the tools."""
        self._environ = environ
        self._limits = limits
        self._max_message_bytes = max_message_bytes
        self._tokens = tokens
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._state: ServerState = "idle"
        self._title: str | None = None
        self._instructions: str | None = None
        self._error: str | None = None
        self._failure: ServerUnreachable | None = None
        self._failed_at = 0.0
        self._failures = 0
        self._connected_at = 0.0
        self._connection: McpConnection | None = None
        self._closing_connections: set[McpConnection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._liveness_check: asyncio.Task[None] | None = None
        self._closed = False
        if config.problem is not None:
            self._fail(ServerUnreachable(config.problem, lasting=True), "")

    @property
    def status(self) -> ServerStatus:
        state, error = self._state, self._error
        if state == "connected" and self._connection is not None and not self._connection.is_alive:
            # The connection is shutting down. `on_lost` is called only after the shutdown, so show the reason
            # that is already known.
            state, error = "failed", self._connection.reason.reason
        return ServerStatus(
            name=self.config.name,
            state=state,
            title=self._title,
            instructions=self._instructions,
            error=error,
            tools=len(self.tools),
            warnings=self._connection.warnings if self._connection is not None else (),
            was_tried=self._was_tried,
        )

    @property
    def _was_tried(self) -> bool:
        return self._failures > 0 or self._connection is not None

    async def ensure_tried(self) -> None:
        """Makes the first connection attempt, unless an attempt was made before. `status` shows the
        outcome.
        """
        if not self._was_tried:
            with contextlib.suppress(ServerUnreachable):
                await self._try_connect()

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        timeout: float | None,
        on_progress: ProgressCallback | None,
        *,
        whole: bool = False,
        on_input: AskForInput | None = None,
    ) -> Any:
        seconds = timeout or self.config.call_seconds or self._limits.call_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                ask = None if on_input is None else partial(_ask_untimed, limit, on_input)
                return await self._call(tool, arguments, on_progress, whole, ask)
        except TimeoutError:
            self._check_liveness()
            problem = "was not connected" if self._state == "connecting" else "did not answer"
            raise UpstreamError(
                self.config.name, tool, f"{problem} within {seconds:g} s", kind="timeout"
            ) from None

    async def close(self) -> None:
        self._closed = True
        tasks = [
            task for task in (self._recovering, self._connecting, self._liveness_check) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            self._closing_connections.add(self._connection)
            self._connection = None
        await asyncio.gather(*(connection.close() for connection in self._closing_connections))
        self._closing_connections.clear()
        self._state = "idle"

    # --- calls ---

    async def _call(
        self,
        tool: str,
        arguments: dict[str, Any],
        on_progress: ProgressCallback | None,
        whole: bool,
        on_input: AskForInput | None,
    ) -> Any:
        for _ in range(2):
            connection = await self._get_connection(tool)
            definition = self.tools.get(tool)
            if definition is None:
                raise self._unknown_tool(tool)
            with contextlib.suppress(CallNotSent):
                try:
                    return await connection.call(
                        definition, arguments, on_progress, whole=whole, on_input=on_input
                    )
                except UpstreamError as error:
                    raise _with_argument_problem(error, definition, arguments) from error.__cause__
        raise self._not_connected(
            self._failure or ServerUnreachable("the connection is lost repeatedly"), tool
        )

    async def _get_connection(self, tool: str) -> McpConnection:
        """Returns the connection. Connects if there is none. Raises the last error if an attempt failed a
        moment ago.
        """
        if self._connection is None or not self._connection.is_alive:
            recently = self._loop.time() - self._failed_at < self._limits.failure_seconds
            if self._failure is not None and (recently or self.config.problem is not None):
                raise self._not_connected(self._failure, tool)
            try:
                await self._try_connect()
            except ServerUnreachable as failure:
                raise self._not_connected(failure, tool) from None
        if self._connection is None:
            raise self._not_connected(self._failure or ServerUnreachable("the connection is closed"), tool)
        return self._connection

    def _not_connected(self, failure: ServerUnreachable, tool: str) -> UpstreamError:
        message = f"the server is not connected: {failure.reason}"
        return UpstreamError(self.config.name, tool, message, kind=failure.kind)

    def _unknown_tool(self, tool: str) -> UpstreamError:
        near = did_you_mean(tool, self.tools)
        hint = f" Did you mean {near}?" if near else ""
        message = f"the server has no tool {tool[:100]!r}.{hint}"
        return UpstreamError(self.config.name, tool, message, kind="unknown_tool")

    def _check_liveness(self) -> None:
        """Starts a liveness check after a timeout. If the server hangs, its connection is ended, so that the
        next call reconnects.
        """
        connection = self._connection
        if (
            connection is not None
            and (self._liveness_check is None or self._liveness_check.done())
            and not self._closed
        ):
            self._liveness_check = self._loop.create_task(connection.check_alive())

    # --- connecting ---

    async def _try_connect(self) -> None:
        """Connects, or waits for an attempt that is already in progress. The attempt continues if the caller
        is cancelled. Raises ServerUnreachable.
        """
        if self._closed:
            raise ServerUnreachable("it is closed")
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._connect())
            self._connecting.add_done_callback(_retrieve_exception)
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        self._state = "connecting"
        try:
            self._adopt(await self._open())
        except ServerUnreachable as failure:
            self._fail(failure, failure.stderr_tail)
            self._recover()
            raise
        except asyncio.CancelledError:
            self._state = "idle"
            raise
        except Exception as error:
            # Convert an unexpected error, so that the tasks that wait for the connection fail with it.
            logger.exception("%s: connecting failed", self.config.name)
            unexpected = ServerUnreachable(f"{type(error).__name__}: {error}")
            self._fail(unexpected, "")
            raise unexpected from error

    async def _open(self) -> McpConnection:
        # Import the module in a thread, because the import takes a second.
        await asyncio.to_thread(import_module, "hutch.mcp_client.connection")
        auth = await self._auth()
        return await connect(
            self.config,
            environ=self._environ,
            limits=self._limits,
            max_message_bytes=self._max_message_bytes,
            auth=auth,
            on_tools_changed=self._on_tools_changed,
            on_lost=self._on_lost,
        )

    async def _auth(self) -> Auth | None:
        if self._tokens is None or isinstance(self.config.transport, StdioConfig):
            return None
        from hutch.mcp_client.oauth.stored_auth import stored_auth

        try:
            return await asyncio.to_thread(stored_auth, self.config, self._tokens)
        except VaultError as error:
            raise ServerUnreachable(str(error), "login_required", lasting=True) from None

    def _adopt(self, connection: McpConnection) -> None:
        if self._connection is not None:
            # Keep the previous connection until it is closed, because its processes may still be exiting.
            self._closing_connections.add(self._connection)
        self._connection = connection
        self._connected_at = self._loop.time()
        self._state = "connected"
        self._error = self._failure = None
        self._title, self._instructions = connection.title, connection.instructions
        if connection.is_alive:
            self._on_tools_changed(connection)
        else:
            self._on_lost(connection)

    def _on_tools_changed(self, connection: McpConnection) -> None:
        self.tools, self.digest = connection.tools, connection.digest
        for warning in connection.warnings:
            logger.warning("%s: %s", self.config.name, warning)
        self._on_change()

    # --- reconnecting ---

    def _on_lost(self, connection: McpConnection) -> None:
        self._closing_connections.discard(connection)
        if connection is not self._connection:
            return
        self._connection = None
        if self._loop.time() - self._connected_at > self._limits.stable_seconds:
            self._failures = 0
        self._fail(connection.reason, connection.stderr_tail)
        # The server was connected until now, so the next call may reconnect immediately.
        self._failed_at = 0.0
        self._recover()

    def _fail(self, failure: ServerUnreachable, stderr: str) -> None:
        self._state = "failed"
        self._failure = failure
        self._failures += 1
        self._failed_at = self._loop.time()
        error = f"{failure.reason}: {stderr}" if stderr else failure.reason
        if error != self._error:
            logger.warning("%s: %s", self.config.name, error)
        self._error = error

    def _recover(self) -> None:
        is_recovering = self._recovering is not None and not self._recovering.done()
        if not self._closed and not is_recovering and self._should_retry():
            self._recovering = self._loop.create_task(self._retry_loop())

    async def _retry_loop(self) -> None:
        while self._should_retry():
            await asyncio.sleep(self._limits.retry_delay(self._failures - 1))
            # Check again, because a call may have reconnected meanwhile.
            if self._should_retry():
                with contextlib.suppress(ServerUnreachable):
                    await self._try_connect()

    def _should_retry(self) -> bool:
        failure = self._failure
        return failure is not None and not failure.lasting and self._failures <= self._limits.max_retries


def _with_argument_problem(error: UpstreamError, tool: McpTool, arguments: dict[str, Any]) -> UpstreamError:
    """Adds to an error of a tool how the arguments differ from its schema. The messages of many servers name
    neither the tool nor the expected argument.
    """
    problem = argument_problem(tool, arguments) if error.kind in ("tool_error", "rpc_error") else None
    if problem is None:
        return error
    message = f"{error.message}\n{problem}"
    return UpstreamError(error.server, error.tool, message, kind=error.kind, details=error.details)


async def _ask_untimed(
    limit: asyncio.Timeout, on_input: AskForInput, requests: InputRequests
) -> InputResponses:
    """Asks the user. The time until the answer does not count towards the time limit of the call."""
    loop = asyncio.get_running_loop()
    left = (limit.when() or 0.0) - loop.time()
    limit.reschedule(None)
    try:
        return await on_input(requests)
    finally:
        limit.reschedule(loop.time() + left)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Marks the exception as retrieved, because there may be no task that waits for it."""
    if not task.cancelled():
        task.exception()
