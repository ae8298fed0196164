"""The stdio transport: one JSON-RPC message a line, over the pipes of a program of ours.

The SDK has one too. This one bounds what it holds, survives an answer that is too large, gives the program a
minimal environment, and leaves nothing of it behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from hutch.session.channel import given_away
from hutch.upstream import salvage
from hutch.upstream.direct import DirectCalls
from hutch.upstream.entries import Program
from hutch.upstream.lines import LineReader, LineWriter, TooLong
from hutch.upstream.process import ServerProcess


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

    def __init__(self, lines: LineReader, limit: int, direct: DirectCalls) -> None:
        self._lines = lines
        self._limit = limit
        self._direct = direct

    @property
    def why_it_ended(self) -> str | None:
        """None if the server ended it."""
        return "it writes a line that has no end" if self._lines.endless else None

    def __aiter__(self) -> StdioReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            line = await self._lines.next()
            if line is None:
                self._direct.close()
                raise StopAsyncIteration
            item = self._read(line)
            message = item.message if isinstance(item, SessionMessage) else None
            if not isinstance(message, JSONRPCResponse | JSONRPCError) or not self._direct.settle(message):
                return item

    def _read(self, line: bytes | TooLong) -> SessionMessage | Exception:
        if isinstance(line, TooLong):
            found = salvage.too_large(line.head, line.tail, self._limit)
            return found or Nonsense(f"a message of more than {self._limit} bytes, which names no call")
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            return salvage.unreadable(error) or Nonsense(line[:80].decode(errors="replace"))

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None


class StdioWriter(_Stream):
    """Messages to a server."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    async def send(self, item: SessionMessage, /) -> None:
        # Who only notifies, of a cancellation say, does not wait for a server that reads nothing.
        if isinstance(item.message, JSONRPCRequest):
            await self._lines.drained()
        if self._lines.closed:
            raise anyio.BrokenResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._lines.write(text.encode() + b"\n")


@asynccontextmanager
async def connect(
    program: Program, environ: Mapping[str, str], limit: int, on_deaf: Callable[[str | None], None]
) -> AsyncIterator[tuple[StdioReader, StdioWriter, DirectCalls, ServerProcess]]:
    """Starts a server; when this is left, it has ended. Raises CannotStart.

    `on_deaf` is called when the server reads nothing more, with a reason if that is our doing.
    """
    process = ServerProcess(program, environ)
    input = LineWriter(on_deaf)
    direct = DirectCalls(input)
    output = LineReader(limit, direct.take)
    loop = asyncio.get_running_loop()
    try:
        connecting = asyncio.gather(
            loop.connect_read_pipe(lambda: output, given_away(process.stdout)),
            loop.connect_write_pipe(lambda: input, given_away(process.stdin)),
        )
        # Half-way, nobody would know who has to close them.
        with anyio.CancelScope(shield=True):
            await connecting
        yield StdioReader(output, limit, direct), StdioWriter(input), direct, process
    finally:
        direct.close()
        input.close()
        try:
            await process.end(is_ending=output.ended)
        finally:
            output.close()
