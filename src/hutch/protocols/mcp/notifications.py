"""Notifies clients of the progress of a request (each step, and a heartbeat), and of changes of the tools."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from mcp.types import NotificationParams

HEARTBEAT_SECONDS = 5.0
# Maximum number of steps queued for a slow client. The oldest steps are dropped.
_MAX_QUEUED = 100
# Time for sending the last steps. A slower client gets only the result.
_FLUSH_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"


class ProgressReporter:
    """Context manager that sends progress while it is open. `report` never waits for the client."""

    def __init__(self, session: ServerSession, idle_message: Callable[[], str], seconds: float) -> None:
        """`idle_message` returns the message that is sent after `seconds` without a step."""
        self._session = session
        self._idle_message = idle_message
        self._seconds = seconds
        self._queue: deque[str] = deque(maxlen=_MAX_QUEUED)
        self._changed = asyncio.Event()
        self._count = 0
        self._is_finished = False
        self._sender: asyncio.Task[None] | None = None

    def report(self, text: str) -> None:
        self._queue.append(text)
        self._changed.set()

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sender is not None
        if kind is None:
            self._is_finished = True
            self._changed.set()
            await asyncio.wait((self._sender,), timeout=_FLUSH_SECONDS)
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    async def _send_all(self) -> None:
        while not self._is_finished or self._queue:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._changed.wait()
            self._changed.clear()
            if not self._queue and not self._is_finished:
                self._queue.append(self._idle_message())
            while self._queue:
                self._count += 1
                await self._session.report_progress(self._count, message=self._queue.popleft())


class ToolChanges:
    """Notifies clients that the tools have changed."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.streams = ListenHandler(self._bus)
        """Handler for clients that subscribe. Other clients get notifications without a subscription."""
        self._clients: dict[object, asyncio.Event] = {}
        self._publishing: set[asyncio.Task[None]] = set()

    def notify(self) -> None:
        for changed in self._clients.values():
            changed.set()
        task = asyncio.get_running_loop().create_task(self._bus.publish(ToolsListChanged()))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def listen(self, context: ServerRequestContext[Any, Any], _: NotificationParams) -> None:
        """Notifies a client about changes. Runs from `notifications/initialized` until the client
        disconnects.
        """
        client = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if client in self._clients:
            return
        changed = self._clients[client] = asyncio.Event()
        try:
            while True:
                await changed.wait()
                changed.clear()
                await context.session.send_tool_list_changed()
        finally:
            del self._clients[client]
