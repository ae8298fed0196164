"""Wraps the message stream between a transport and the SDK's session. Reports the end of the stream and stops
floods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError

from hutch.mcp_client import error_messages
from hutch.mcp_client.limits import FloodMeter
from hutch.mcp_client.tools import content_problem
from hutch.mcp_client.transports.long_messages import LongResults

# An invalid message counts as this many unsolicited messages.
INVALID_COST = 10
# Responses have a cost because this class does not know which responses are expected. The cost is low enough
# that no regular session reaches the limit.
RESPONSE_COST = 0.25


class WatchedStream:
    """Message stream of a transport. `on_end` is called once, with a reason if the client ended the
    stream.
    """

    def __init__(
        self, stream: Any, meter: FloodMeter, results: LongResults, on_end: Callable[[str | None], None]
    ) -> None:
        self.invalid: list[str] = []
        self._stream = stream
        self._meter = meter
        self._results = results
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._on_end(getattr(self._stream, "end_reason", None))
            raise StopAsyncIteration from None
        if isinstance(item, ValidationError):
            item = error_messages.error_for_invalid(item) or item
        elif isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            item = self._checked(item, item.message)
        delay = self._meter.delay(self._cost(item), self._loop.time())
        if delay is None:
            self._on_end("it floods the client with unsolicited messages")
            raise StopAsyncIteration
        # Sleep even if the delay is 0, so that other tasks can run before the next message is read.
        await asyncio.sleep(delay)
        return item

    def _checked(self, item: SessionMessage, response: JSONRPCResponse) -> SessionMessage:
        """Restores a long result. If a response has invalid content blocks, returns an error instead."""
        response.result = self._results.restore(response.result)
        problem = content_problem(response.result)
        return item if problem is None else error_messages.error_for_result(response.id, problem)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def _cost(self, item: SessionMessage | Exception) -> float:
        if isinstance(item, Exception):
            if len(self.invalid) < 3:
                self.invalid.append(" ".join(str(item).split())[:80])
            return INVALID_COST
        return 1 if isinstance(item.message, (JSONRPCNotification, JSONRPCRequest)) else RESPONSE_COST

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
