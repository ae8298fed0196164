"""Between a transport and the SDK's session: hears when a server falls silent for good, or talks too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest
from pydantic import ValidationError

from hutch.upstream import salvage
from hutch.upstream.bounds import Meter

# What is no message at all costs as much as so many that nobody asked for.
NONSENSE_COST = 10
# Whether somebody waits for an answer is not known here; that so many are awaited cannot be.
ANSWER_COST = 0.25


class Watched:
    """A transport's stream of messages. `on_end` is called once, with a reason if the end is our doing."""

    def __init__(self, stream: Any, meter: Meter, on_end: Callable[[str | None], None]) -> None:
        self.nonsense: list[str] = []
        self._stream = stream
        self._meter = meter
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._on_end(getattr(self._stream, "why_it_ended", None))
            raise StopAsyncIteration from None
        if isinstance(item, ValidationError):
            item = salvage.unreadable(item) or item
        delay = self._meter.delay(self._cost(item), self._loop.time())
        if delay is None:
            self._on_end("it floods us with messages that nobody asked for")
            raise StopAsyncIteration
        # However much there is to read, others get their turn.
        await asyncio.sleep(delay)
        return item

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def _cost(self, item: SessionMessage | Exception) -> float:
        if isinstance(item, Exception):
            if len(self.nonsense) < 3:
                self.nonsense.append(" ".join(str(item).split())[:80])
            return NONSENSE_COST
        return 1 if isinstance(item.message, (JSONRPCNotification, JSONRPCRequest)) else ANSWER_COST

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        closed: bool | None = await self._stream.__aexit__(kind, error, trace)
        return closed
