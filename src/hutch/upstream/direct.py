"""Calls of tools over stdio, past the SDK's dispatcher, which takes longer than all else we do for a call.

The introduction, lists, whatever a server says or asks by itself, and calls whose progress somebody hears are
the SDK's. Its requests are numbered from 1, ours from far beyond, so that neither takes the other's answers.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, TypeAlias

import msgspec
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, JSONRPCError, JSONRPCResponse

from hutch.upstream.failures import NotSent
from hutch.upstream.lines import LineWriter

Result: TypeAlias = msgspec.Raw | dict[str, Any]
"""As the server wrote it, or as the SDK read it."""

# Not so far that a server with 32 bits for it could not read it.
_ids = itertools.count(1 << 30)
_NULL = b"null"


class _Answer(msgspec.Struct):
    id: int | str
    result: msgspec.Raw
    error: msgspec.Raw = msgspec.Raw(_NULL)
    method: msgspec.Raw = msgspec.Raw(_NULL)


_answers = msgspec.json.Decoder(_Answer, strict=False)


class DirectCalls:
    """The calls of one server that are under way."""

    def __init__(self, output: LineWriter) -> None:
        self._output = output
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server reads no more calls; those under way may still be answered."""
        return self._closed or self._output.closed

    async def call(self, name: str, arguments: dict[str, Any]) -> Result:
        """Raises MCPError, and NotSent if the server cannot have seen it.

        Cancelled, it tells the server so.
        """
        await self._output.drained()
        if self.closed:
            raise NotSent
        id = next(_ids)
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answered
        try:
            self._send(id=id, method="tools/call", params={"name": name, "arguments": arguments})
            if self._output.closed:
                raise NotSent
            return await answered
        except asyncio.CancelledError:
            self._send(
                method="notifications/cancelled", params={"requestId": id, "reason": "caller cancelled"}
            )
            raise
        finally:
            del self._waiting[id]

    def take(self, line: bytes) -> bool:
        """Whether a line is the result of one of these calls. All else, good or bad, is the SDK's to read."""
        if not self._waiting:
            return False
        try:
            answer = _answers.decode(line.decode())
        except (ValueError, RecursionError):
            return False
        is_result = bytes(answer.error) == _NULL and bytes(answer.method) == _NULL
        if not is_result or bytes(answer.result)[:1] != b"{":
            return False
        answered = self._unanswered(answer.id)
        if answered is None:
            return False
        answered.set_result(answer.result)
        return True

    def settle(self, answer: JSONRPCResponse | JSONRPCError) -> bool:
        """Whether an answer that the SDK has read is that of one of these calls."""
        answered = self._unanswered(answer.id)
        if answered is None:
            return False
        if isinstance(answer, JSONRPCResponse):
            answered.set_result(answer.result)
        else:
            error = answer.error
            answered.set_exception(MCPError(code=error.code, message=error.message, data=error.data))
        return True

    def _unanswered(self, id: str | int | None) -> asyncio.Future[Result] | None:
        # Some servers make a text of a number.
        number = coerce_request_id(id) if id is not None else None
        answered = self._waiting.get(number) if isinstance(number, int) else None
        return None if answered is None or answered.done() else answered

    def close(self) -> None:
        """No answer comes any more."""
        self._closed = True
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(_closed())

    def _send(self, **message: object) -> None:
        self._output.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")


def _closed() -> MCPError:
    # In the SDK's words, which `explain` knows.
    return MCPError(code=CONNECTION_CLOSED, message="Connection closed")
