"""Calls of tools over stdio, past the SDK's dispatcher, which takes longer than all else we do for a call.

The introduction, lists, whatever a server says or asks by itself, and calls whose progress somebody hears are
the SDK's. Its requests are numbered from 1, ours from far beyond, so that neither takes the other's answers.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, ErrorData

from hutch.upstream.lines import LineWriter

# Not so far that a server with 32 bits for it could not read it.
_ids = itertools.count(1 << 30)


class _Answer(msgspec.Struct):
    id: int
    result: msgspec.Raw
    error: msgspec.UnsetType | msgspec.Raw = msgspec.UNSET
    method: msgspec.UnsetType | msgspec.Raw = msgspec.UNSET


# Some servers make a text of a number.
_answers = msgspec.json.Decoder(_Answer, strict=False)


class DirectCalls:
    """The calls of one server that are under way."""

    def __init__(self, output: LineWriter) -> None:
        self._output = output
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._closed = False

    async def call(self, name: str, arguments: dict[str, Any]) -> msgspec.Raw:
        """The result as the server wrote it. Raises MCPError. Cancelled, it tells the server so."""
        if self._closed or self._output.closed:
            raise _closed()
        id = next(_ids)
        answered: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answered
        try:
            self._send(id=id, method="tools/call", params={"name": name, "arguments": arguments})
            await self._output.drained()
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
        answered = self._waiting.get(answer.id)
        is_result = answer.error is msgspec.UNSET and answer.method is msgspec.UNSET
        if answered is None or not is_result or bytes(answer.result)[:1] != b"{":
            return False
        if not answered.done():
            answered.set_result(answer.result)
        return True

    def fail(self, id: str | int | None, error: ErrorData) -> bool:
        """Whether a failure is that of one of these calls."""
        answered = self._waiting.get(int(id)) if id is not None and str(id).isdecimal() else None
        if answered is None:
            return False
        if not answered.done():
            answered.set_exception(MCPError(code=error.code, message=error.message, data=error.data))
        return True

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
