"""Messages to a bare Deno and back: the same roads as a tool call's, with nothing at either end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.baseline import HERE, environment
from hutch.sandbox import runtime

MESSAGE = b'{"type":"tool_result","callId":"c1000","ok":true,"result":1000}\n'
CONNECT_SECONDS = 20.0


class _Echo(asyncio.SubprocessProtocol):
    """Answers what it hears until it has heard it `left` times."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None
        self.left = 0
        self.over: asyncio.Future[None] | None = None
        self.exited = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # One message is under way at a time, and one chunk is all of it.
        self.left -= 1
        if self.left > 0 and self.writer is not None:
            self.writer.write(MESSAGE)
        elif self.over is not None:
            self.over.set_result(None)

    def process_exited(self) -> None:
        self.exited.set()


async def echo(count: int, rounds: int) -> list[float]:
    """Milliseconds of a message there and back, one after the other, of each round."""
    loop = asyncio.get_running_loop()
    spoken = _Echo()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        connected: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        server = await asyncio.start_unix_server(lambda _, writer: connected.set_result(writer), path)
        process, _ = await loop.subprocess_exec(
            lambda: spoken, runtime.locate(), "run", "--quiet", "--no-config", "--no-lock",
            f"--allow-read={path}", f"--allow-write={path}", f"--allow-net=unix:{path}",
            str(HERE / "echo.js"), path, env=environment(), stdin=None, stderr=None,
        )  # fmt: skip
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                spoken.writer = await connected
            return [await _round(spoken, count) for _ in range(rounds)]
        finally:
            server.close()
            if spoken.writer is not None:
                spoken.writer.close()
            process.kill()
            await spoken.exited.wait()
            process.close()


async def _round(spoken: _Echo, count: int) -> float:
    spoken.left = count
    spoken.over = asyncio.get_running_loop().create_future()
    assert spoken.writer is not None
    began = time.perf_counter()
    spoken.writer.write(MESSAGE)
    await spoken.over
    return (time.perf_counter() - began) * 1000 / count
