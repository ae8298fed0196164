"""Messages to a bare Deno and back: the same roads as a tool call's, with nothing at either end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.baseline import HERE, environment
from hutch.sandbox import runtime

MESSAGE = b'{"type":"tool_result","callId":"c1000","ok":true,"result":1000}\n'


class _Heard(asyncio.Protocol):
    """Answers what it hears until it has heard it `left` times."""

    def __init__(self) -> None:
        self.writer: asyncio.WriteTransport | None = None
        self.left = 0
        self.over: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.left -= 1
        if self.left > 0 and self.writer is not None:
            self.writer.write(MESSAGE)
        elif self.over is not None:
            self.over.set_result(None)


async def echo(count: int, rounds: int) -> list[float]:
    """Milliseconds of a message there and back, one after the other, of each round."""
    loop = asyncio.get_running_loop()
    heard = _Heard()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        connected: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        server = await asyncio.start_unix_server(lambda _, writer: connected.set_result(writer), path)
        process, _ = await loop.subprocess_exec(
            lambda: _Process(heard), runtime.locate(), "run", "--quiet", "--no-config", "--no-lock",
            f"--allow-read={path}", f"--allow-write={path}", f"--allow-net=unix:{path}",
            str(HERE / "echo.js"), path, env=environment(), stdin=None, stderr=None,
        )  # fmt: skip
        try:
            heard.writer = (await connected).transport
            return [await _round(heard, count) for _ in range(rounds)]
        finally:
            server.close()
            process.kill()
            process.close()


async def _round(heard: _Heard, count: int) -> float:
    heard.left = count
    heard.over = asyncio.get_running_loop().create_future()
    assert heard.writer is not None
    began = time.perf_counter()
    heard.writer.write(MESSAGE)
    await heard.over
    return (time.perf_counter() - began) * 1000 / count


class _Process(asyncio.SubprocessProtocol):
    def __init__(self, heard: _Heard) -> None:
        self._heard = heard

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._heard.data_received(data)
