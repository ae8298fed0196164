"""The two baselines: a new quickjs-wasi VM for every evaluation in a bare Deno loop, and `deno run`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hutch.sandbox import runtime

HERE = Path(__file__).parent
_ANSWER_BYTES = 64 * 1024 * 1024


def environment() -> dict[str, str]:
    """The same cache of npm packages as the build's."""
    return {
        "DENO_DIR": str(HERE.parent.parent / "build" / "deno"),
        "DENO_TLS_CA_STORE": "mozilla,system",
        **os.environ,
        "NO_COLOR": "1",
    }


class FreshVms:
    """Baseline (a): vm.ts in a Deno of its own, that does what it is told and says how long it took."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            runtime.locate(), "run", "--quiet", "--frozen", str(HERE / "vm.ts"),
            cwd=HERE, env=environment(), limit=_ANSWER_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await self.evaluate(20)  # the first ones compile
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
        """Milliseconds of each of `count` evaluations, each in a new VM."""
        return await self._ask("evaluate", count)

    async def call(self, count: int) -> float:
        """Milliseconds of `count` calls of an async host function, one after the other, in one VM."""
        return await self._ask("call", count)

    async def suspend(self, count: int) -> None:
        await self._ask("suspend", count)

    async def resume(self) -> int:
        return await self._ask("resume", 0)

    async def _ask(self, what: str, count: int) -> Any:
        process = self._running
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"what": what, "count": count}).encode() + b"\n")
        answer = await process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the baseline ended with exit code {await process.wait()}")
        return json.loads(answer)


async def deno_run() -> float:
    """Baseline (b): seconds that `deno run` takes for the same code."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        runtime.locate(), "run", "--quiet", "--no-config", "--no-lock", str(HERE / "once.js"),
        env=environment(), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    if out != b"2\n":
        raise RuntimeError(f"`deno run` printed {out!r}")
    return time.perf_counter() - began
