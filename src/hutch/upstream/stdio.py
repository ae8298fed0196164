"""The stdio transport: one JSON-RPC message a line, over the pipes of a program of ours.

The SDK has one too. This one bounds what it holds, survives an answer that is too large, gives the program a
minimal environment, and leaves nothing of it behind.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from hutch.session.channel import given_away
from hutch.upstream.entries import Program
from hutch.upstream.failures import Flaw
from hutch.upstream.lines import LineReader, LineWriter, TooLong
from hutch.upstream.process import ServerProcess

# `{"jsonrpc":"2.0","id":7,…` as most write it, or `…,"jsonrpc":"2.0","id":7}`.
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+|"[^"\\]*")\s*[,}]')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d+|"[^"\\]*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Nonsense(Exception):
    """A line that is no message; the text is its beginning."""


class _Stream:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The pipes are closed with the process."""


class StdioReader(_Stream):
    """Messages from a server, as the SDK's sessions read them."""

    def __init__(self, lines: LineReader, limit: int) -> None:
        self._lines = lines
        self._limit = limit

    @property
    def why_it_ended(self) -> str | None:
        """None if the server ended it."""
        return "it writes a line that has no end" if self._lines.endless else None

    def __aiter__(self) -> StdioReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        line = await self._lines.next()
        if line is None:
            raise StopAsyncIteration
        if isinstance(line, TooLong):
            return self._too_large(line)
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            return _salvaged(line)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def _too_large(self, line: TooLong) -> SessionMessage | Exception:
        found = _ID_FIRST.match(line.head) or _ID_LAST.search(line.tail)
        if found is None:
            return Nonsense(f"a message of more than {self._limit} bytes, which names no call")
        message = f"the answer is larger than {self._limit} bytes"
        return _failed(msgspec.json.decode(found[1]), message, Flaw("too_large"))


class StdioWriter(_Stream):
    """Messages to a server."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    async def send(self, item: SessionMessage, /) -> None:
        if self._lines.closed:
            raise anyio.BrokenResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._lines.write(text.encode() + b"\n")
        # Who only notifies, of a cancellation say, does not wait for a server that reads nothing.
        if isinstance(item.message, JSONRPCRequest):
            await self._lines.drained()


@asynccontextmanager
async def connect(
    program: Program, environ: Mapping[str, str], limit: int
) -> AsyncIterator[tuple[StdioReader, StdioWriter, ServerProcess]]:
    """Starts a server; when this is left, it has ended. Raises CannotStart."""
    process = ServerProcess(program, environ)
    output, input = LineReader(limit), LineWriter()
    loop = asyncio.get_running_loop()
    try:
        connecting = asyncio.gather(
            loop.connect_read_pipe(lambda: output, given_away(process.stdout)),
            loop.connect_write_pipe(lambda: input, given_away(process.stdin)),
        )
        # Half-way, nobody would know who has to close them.
        with anyio.CancelScope(shield=True):
            await connecting
        yield StdioReader(output, limit), StdioWriter(input), process
    finally:
        input.close()
        try:
            await process.end(is_ending=output.ended)
        finally:
            output.close()


def _salvaged(line: bytes) -> SessionMessage | Exception:
    """An answer of the wrong form is still an answer: whoever waits for it need not wait any longer."""
    try:
        said: Any = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and isinstance(said.get("id"), (int, str)) and "method" not in said:
        return _failed(said["id"], "the answer is not as JSON-RPC has it", Flaw("invalid_result"))
    return Nonsense(line[:80].decode(errors="replace"))


def _failed(call: int | str, message: str, flaw: Flaw) -> SessionMessage:
    error = ErrorData(code=PARSE_ERROR, message=message, data=flaw)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=call, error=error))
