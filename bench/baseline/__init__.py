"""The two baselines: a new quickjs-wasi VM per evaluation in a bare Deno loop, and `deno run`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hutch.sandbox import deno_binary

HERE = Path(__file__).parent
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024


def environment() -> dict[str, str]:
    """Returns the environment for Deno processes, which use the npm packages that the build has
    downloaded.
    """
    return {
        "DENO_DIR": str(HERE.parent.parent / "build" / "deno"),
        "DENO_TLS_CA_STORE": "mozilla,system",
        **os.environ,
        "NO_COLOR": "1",
    }


class FreshVms:
    """Baseline (a): a Deno process with vm.ts, which executes requests and returns their durations."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            deno_binary.find_deno(), "run", "--quiet", "--frozen", str(HERE / "vm.ts"),
            cwd=HERE, env=environment(), limit=_MAX_RESPONSE_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await self.evaluate(20)  # warm up: V8 compiles the code during the first evaluations
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def evaluate(self, count: int) -> list[float]:
        """Returns the milliseconds of `count` evaluations, each in a new VM."""
        return await self._request("evaluate", count)

    async def call(self, count: int) -> float:
        """Returns the milliseconds of `count` sequential calls of an async host function in one VM."""
        return await self._request("call", count)

    async def suspend(self, count: int) -> None:
        await self._request("suspend", count)

    async def resume(self) -> int:
        return await self._request("resume", 0)

    async def _request(self, action: str, count: int) -> Any:
        process = self._running
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"action": action, "count": count}).encode() + b"\n")
        response = await process.stdout.readline()
        if not response:
            raise RuntimeError(f"the baseline ended with exit code {await process.wait()}")
        return json.loads(response)


async def deno_run() -> float:
    """Measures baseline (b). Returns the seconds that `deno run` takes for the same code as baseline (a)."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        deno_binary.find_deno(), "run", "--quiet", "--no-config", "--no-lock", str(HERE / "once.js"),
        env=environment(), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    if out != b"2\n":
        raise RuntimeError(f"`deno run` printed {out!r}")
    return time.perf_counter() - began
