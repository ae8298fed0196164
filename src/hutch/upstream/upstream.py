"""One server for as long as we run: connected when it is needed, had back when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hutch.errors import UpstreamError, VaultError
from hutch.upstream.bounds import Bounds
from hutch.upstream.entries import Program, ServerConfig
from hutch.upstream.failures import NotSent, Unreachable
from hutch.upstream.tools import Server, State, UpstreamTool

if TYPE_CHECKING:
    from httpx2 import Auth

    from hutch.upstream.connection import Connection, Progress
    from hutch.vault.tokens import Tokens

logger = logging.getLogger("hutch.upstream")

# What servers say that know SSE and nothing newer.
_OLD = (400, 404, 405, 406, 415)


async def connect(
    config: ServerConfig,
    *,
    environ: Mapping[str, str],
    bounds: Bounds,
    limit: int,
    auth: Auth | None,
    on_tools: Callable[[Connection], None] = lambda _: None,
    on_lost: Callable[[Connection], None] = lambda _: None,
) -> Connection:
    """An open connection, by the first protocol that the server understands. Raises Unreachable."""
    from hutch.upstream.connection import Connection

    protocols = _protocols(config)
    for number, protocol in enumerate(protocols, 1):
        connection = Connection(
            config,
            protocol,
            environ=environ,
            bounds=bounds,
            limit=limit,
            auth=auth,
            on_tools=on_tools,
            on_lost=on_lost,
        )
        try:
            await connection.open()
            return connection
        except Unreachable as failure:
            failure.complaint = connection.complaint
            if number == len(protocols) or failure.status not in _OLD:
                raise
    raise AssertionError("the last protocol returned or raised")


def _protocols(config: ServerConfig) -> tuple[Literal["stdio", "http", "sse"], ...]:
    reach = config.reach
    if isinstance(reach, Program):
        return ("stdio",)
    return ("http", "sse") if reach.protocol == "either" else (reach.protocol,)


class Upstream:
    """`on_change` is called when the tools have changed."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        environ: Mapping[str, str],
        bounds: Bounds,
        limit: int,
        tokens: Tokens | None,
        on_change: Callable[[], None],
    ) -> None:
        self.config = config
        self.tools: dict[str, UpstreamTool] = {}
        """Kept while the server is away: what it had is what it will have, until it says otherwise."""
        self._environ = environ
        self._bounds = bounds
        self._limit = limit
        self._tokens = tokens
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._state: State = "idle"
        self._title: str | None = None
        self._instructions: str | None = None
        self._error: str | None = None
        self._failure: Unreachable | None = None
        self._failed_at = 0.0
        self._failures = 0
        self._connected_at = 0.0
        self._connection: Connection | None = None
        self._leaving: set[Connection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        if config.problem is not None:
            self._fail(Unreachable(config.problem, lasting=True), "")

    @property
    def server(self) -> Server:
        state, error = self._state, self._error
        if state == "connected" and self._connection is not None and not self._connection.alive:
            # Leaving takes a moment, and only then is it known how it ended.
            state, error = "failed", self._connection.reason.reason
        return Server(
            name=self.config.name,
            state=state,
            title=self._title,
            instructions=self._instructions,
            error=error,
            tools=len(self.tools),
            warnings=self._connection.warnings if self._connection is not None else (),
        )

    async def known(self) -> None:
        """Returns when it was tried once to connect; that it failed is for `server` to tell."""
        if self._failures == 0 and self._connection is None:
            with contextlib.suppress(Unreachable):
                await self._attempt()

    async def call(
        self, tool: str, arguments: dict[str, Any], timeout: float | None, on_progress: Progress | None
    ) -> Any:
        """Raises UpstreamError."""
        seconds = timeout or self.config.call_seconds or self._bounds.call_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._call(tool, arguments, on_progress)
        except TimeoutError:
            self._look_alive()
            waited = "was not connected" if self._state == "connecting" else "did not answer"
            raise UpstreamError(
                self.config.name, tool, f"{waited} within {seconds:g} s", kind="timeout"
            ) from None

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._recovering, self._connecting, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            self._leaving.add(self._connection)
            self._connection = None
        await asyncio.gather(*(each.close() for each in self._leaving))
        self._leaving.clear()
        self._state = "idle"

    # --- calls ---

    async def _call(self, tool: str, arguments: dict[str, Any], on_progress: Progress | None) -> Any:
        for _ in range(2):
            connection = await self._connected(tool)
            known = self.tools.get(tool)
            if known is None:
                raise self._unknown(tool)
            with contextlib.suppress(NotSent):
                return await connection.call(known, arguments, on_progress)
        raise self._not_connected(self._failure or Unreachable("it is lost time and again"), tool)

    async def _connected(self, tool: str) -> Connection:
        """A connection, made at once if there is none, unless it was tried and failed just now."""
        if self._connection is None or not self._connection.alive:
            recently = self._loop.time() - self._failed_at < self._bounds.pause_seconds
            if self._failure is not None and (recently or self.config.problem is not None):
                raise self._not_connected(self._failure, tool)
            try:
                await self._attempt()
            except Unreachable as failure:
                raise self._not_connected(failure, tool) from None
        if self._connection is None:
            raise self._not_connected(self._failure or Unreachable("the connection is over"), tool)
        return self._connection

    def _not_connected(self, failure: Unreachable, tool: str) -> UpstreamError:
        message = f"the server is not connected: {failure.reason}"
        return UpstreamError(self.config.name, tool, message, kind=failure.kind)

    def _unknown(self, tool: str) -> UpstreamError:
        from difflib import get_close_matches

        near = get_close_matches(tool, self.tools, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        message = f"the server has no tool {tool[:100]!r}.{hint}"
        return UpstreamError(self.config.name, tool, message, kind="unknown_tool")

    def _look_alive(self) -> None:
        """After a call that took too long: one that hangs is left, so that the next call finds another."""
        connection = self._connection
        if connection is not None and (self._looking is None or self._looking.done()) and not self._closed:
            self._looking = self._loop.create_task(connection.look_alive())

    # --- connecting ---

    async def _attempt(self) -> None:
        """One attempt for all who wait; it goes on when they no longer do. Raises Unreachable."""
        if self._closed:
            raise Unreachable("it is closed")
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._connect())
            self._connecting.add_done_callback(_look_at)
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        self._state = "connecting"
        try:
            self._adopt(await self._open())
        except Unreachable as failure:
            self._fail(failure, failure.complaint)
            self._recover()
            raise
        except asyncio.CancelledError:
            self._state = "idle"
            raise
        except Exception as error:
            # Not foreseen; but nobody is to wait for ever because of it.
            logger.exception("%s: connecting failed", self.config.name)
            unforeseen = Unreachable(f"{type(error).__name__}: {error}")
            self._fail(unforeseen, "")
            raise unforeseen from error

    async def _open(self) -> Connection:
        # In a thread: it takes a second, and the loop has others to serve.
        await asyncio.to_thread(import_module, "hutch.upstream.connection")
        auth = await self._auth()
        return await connect(
            self.config,
            environ=self._environ,
            bounds=self._bounds,
            limit=self._limit,
            auth=auth,
            on_tools=self._changed,
            on_lost=self._lost,
        )

    async def _auth(self) -> Auth | None:
        if self._tokens is None or isinstance(self.config.reach, Program):
            return None
        from hutch.upstream import oauth

        try:
            return await asyncio.to_thread(oauth.stored, self.config, self._tokens)
        except VaultError as error:
            raise Unreachable(str(error), "login_required", lasting=True) from None

    def _adopt(self, connection: Connection) -> None:
        if self._connection is not None:
            # It is over, but its processes may not be.
            self._leaving.add(self._connection)
        self._connection = connection
        self._connected_at = self._loop.time()
        self._state = "connected"
        self._error = self._failure = None
        self._title, self._instructions = connection.title, connection.instructions
        if connection.alive:
            self._changed(connection)
        else:
            self._lost(connection)

    def _changed(self, connection: Connection) -> None:
        self.tools = connection.tools
        for warning in connection.warnings:
            logger.warning("%s: %s", self.config.name, warning)
        self._on_change()

    # --- losing it and having it back ---

    def _lost(self, connection: Connection) -> None:
        self._leaving.discard(connection)
        if connection is not self._connection:
            return
        self._connection = None
        if self._loop.time() - self._connected_at > self._bounds.steady_seconds:
            self._failures = 0
        self._fail(connection.reason, connection.complaint)
        # It did connect: whoever calls next need not wait.
        self._failed_at = 0.0
        self._recover()

    def _fail(self, failure: Unreachable, complaint: str) -> None:
        self._state = "failed"
        self._failure = failure
        self._failures += 1
        self._failed_at = self._loop.time()
        error = f"{failure.reason}: {complaint}" if complaint else failure.reason
        if error != self._error:
            logger.warning("%s: %s", self.config.name, error)
        self._error = error

    def _recover(self) -> None:
        under_way = self._recovering is not None and not self._recovering.done()
        if not self._closed and not under_way and self._waits_to_be_tried():
            self._recovering = self._loop.create_task(self._wait_and_try())

    async def _wait_and_try(self) -> None:
        while self._waits_to_be_tried():
            await asyncio.sleep(self._bounds.retry_delay(self._failures - 1))
            # A call may have had it back meanwhile.
            if self._waits_to_be_tried():
                with contextlib.suppress(Unreachable):
                    await self._attempt()

    def _waits_to_be_tried(self) -> bool:
        failure = self._failure
        return failure is not None and not failure.lasting and self._failures <= self._bounds.retries


def _look_at(task: asyncio.Task[None]) -> None:
    """Whoever waited for it may have gone: its error is seen."""
    if not task.cancelled():
        task.exception()
