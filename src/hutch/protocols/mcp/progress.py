"""Sends progress notifications for a request: every step, and a heartbeat in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

HEARTBEAT_SECONDS = 5.0
# Maximum number of steps queued for a slow client. The oldest steps are dropped.
_MAX_QUEUED = 100
# Time for sending the last steps. A slower client gets only the result.
_FLUSH_SECONDS = 1.0


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
