"""Tells a client that asked how far its request is: of every step, and now and then that all is well."""

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
# For a client that reads slowly: steps that wait to be told. Of more, the oldest are not.
_MOST_WAITING = 100
# For the last words; whoever does not read them has the answer instead.
_LAST_SECONDS = 1.0


class Progress:
    """While this is open. Whoever has something to say never waits for the client."""

    def __init__(self, session: ServerSession, still: Callable[[], str], seconds: float) -> None:
        """`still` is what to say when there was nothing to say for so many seconds."""
        self._session = session
        self._still = still
        self._seconds = seconds
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._said = asyncio.Event()
        self._count = 0
        self._over = False
        self._telling: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        self._waiting.append(text)
        self._said.set()

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._telling is not None
        if kind is None:
            self._over = True
            self._said.set()
            await asyncio.wait((self._telling,), timeout=_LAST_SECONDS)
        self._telling.cancel()
        await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        while not self._over or self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._said.wait()
            self._said.clear()
            if not self._waiting and not self._over:
                self._waiting.append(self._still())
            while self._waiting:
                self._count += 1
                await self._session.report_progress(self._count, message=self._waiting.popleft())
