"""The door over stdin and stdout: one client, which started us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mcp.server.stdio import stdio_server

if TYPE_CHECKING:
    from hutch.doors.mcp.server import Door


async def serve(door: Door) -> None:
    """Until the client closes our stdin, or this is cancelled."""
    # What the SDK reads with cannot be cancelled while it waits for the client.
    lines = Lines(_taken_stdin())
    async with stdio_server(stdin=lines) as (read, write):  # type: ignore[arg-type]
        await door.server.run(read, write, door.server.create_initialization_options())


class Lines:
    """The lines of a file, read by a thread that nobody waits for."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[str | None] = asyncio.Queue()
        # A client that is faster than we are waits.
        self._room = threading.Semaphore(16)
        threading.Thread(target=self._follow, daemon=True, name="stdin").start()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._read.get()
        if line is None:
            raise StopAsyncIteration
        self._room.release()
        return line

    def _follow(self) -> None:
        # The event loop may be over before the file is.
        with contextlib.suppress(RuntimeError):
            for line in _lines(self._file):
                self._room.acquire()
                self._loop.call_soon_threadsafe(self._read.put_nowait, line)
            self._loop.call_soon_threadsafe(self._read.put_nowait, None)


def _lines(file: int) -> Iterator[str]:
    parts: list[bytes] = []
    with contextlib.suppress(OSError):
        while chunk := os.read(file, 65536):
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for other in others:
                yield b"".join(parts).decode(errors="replace")
                parts = [other]


def _taken_stdin() -> int:
    """What we are told is for us alone: whatever else reads stdin finds nothing."""
    mine = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return mine
