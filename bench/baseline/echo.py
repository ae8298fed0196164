"""Round trips to a bare Deno over the same channels as a tool call, without any processing."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.baseline import HERE, environment
from hutch.sandbox import deno_binary

MESSAGE = b'{"type":"tool_result","callId":"c1000","ok":true,"result":1000}\n'
CONNECT_SECONDS = 20.0


class _Echo(asyncio.SubprocessProtocol):
    """Sends a message, and sends it again whenever Deno has echoed it, `left` times in total."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None
        self.left = 0
        self.over: asyncio.Future[None] | None = None
        self.exited = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # Only one message is in flight, and it fits in one chunk.
        self.left -= 1
        if self.left > 0 and self.writer is not None:
            self.writer.write(MESSAGE)
        elif self.over is not None:
            self.over.set_result(None)

    def process_exited(self) -> None:
        self.exited.set()


async def echo(count: int, rounds: int) -> list[float]:
    """Measures `rounds` rounds of `count` round trips. Returns the milliseconds per round trip for each
    round.
    """
    loop = asyncio.get_running_loop()
    protocol = _Echo()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        connected: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        server = await asyncio.start_unix_server(lambda _, writer: connected.set_result(writer), path)
        process, _ = await loop.subprocess_exec(
            lambda: protocol, deno_binary.find_deno(), "run", "--quiet", "--no-config", "--no-lock",
            f"--allow-read={path}", f"--allow-write={path}", f"--allow-net=unix:{path}",
            str(HERE / "echo.js"), path, env=environment(), stdin=None, stderr=None,
        )  # fmt: skip
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                protocol.writer = await connected
            return [await _round(protocol, count) for _ in range(rounds)]
        finally:
            server.close()
            if protocol.writer is not None:
                protocol.writer.close()
            process.kill()
            await protocol.exited.wait()
            process.close()


async def _round(protocol: _Echo, count: int) -> float:
    protocol.left = count
    protocol.over = asyncio.get_running_loop().create_future()
    assert protocol.writer is not None
    began = time.perf_counter()
    protocol.writer.write(MESSAGE)
    await protocol.over
    return (time.perf_counter() - began) * 1000 / count
