"""MCP over stdin and stdout, for one client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio
from mcp.server.stdio import stdio_server

from hutch.streams.lines import LineSplitter
from hutch.streams.stdio import take_stdio

if TYPE_CHECKING:
    from hutch.protocols.mcp.server import HutchMcpServer

MAX_LINE_BYTES = 64 * 1024 * 1024


async def serve(mcp_server: HutchMcpServer) -> None:
    """Serves one client until it closes stdin or the task is cancelled."""
    stdin, stdout = take_stdio()
    # Replace the SDK's own reader, which cannot be cancelled while it waits for input.
    lines = StdinLines(stdin)
    # Keep the descriptor open, because a thread may still be writing when this task is cancelled.
    output = anyio.wrap_file(os.fdopen(stdout, "w", encoding="utf-8", closefd=False))
    async with stdio_server(stdin=lines, stdout=output) as (read, write):  # type: ignore[arg-type]
        await mcp_server.server.run(read, write, mcp_server.server.create_initialization_options())


class StdinLines:
    """Iterator over the lines of a file, which a daemon thread reads."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        # Limits the queue, so that a client that sends too fast has to wait.
        self._slots = threading.Semaphore(16)
        threading.Thread(target=self._read_file, daemon=True, name="stdin").start()

    def __aiter__(self) -> StdinLines:
        return self

    async def __anext__(self) -> str:
        line = await self._queue.get()
        if line is None:
            raise StopAsyncIteration
        self._slots.release()
        return line

    def _read_file(self) -> None:
        # Suppress the error that occurs if the event loop is closed before the file.
        with contextlib.suppress(RuntimeError):
            for line in _read_lines(self._file):
                self._slots.acquire()
                self._loop.call_soon_threadsafe(self._queue.put_nowait, line)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)


def _read_lines(file: int) -> Iterator[str]:
    # Cut lines that are too long. The SDK reports them as malformed.
    splitter = LineSplitter(MAX_LINE_BYTES, truncate=True)
    with contextlib.suppress(OSError):
        while chunk := os.read(file, 65536):
            for line in splitter.feed(chunk):
                yield line.decode(errors="replace")
