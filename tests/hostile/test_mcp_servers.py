"""Results of hostile MCP servers do not block the host."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.mcp_servers import hostile_results
from tests.support.stalls import LoopStalls, repeat_on_stall

import hutch

CODE = "try { return await tools.s.t({}) } catch (error) { return error.message }"
CASES = [
    *itertools.product(("stdio", "http"), hostile_results.RESULTS),
    ("events", "values"),
    ("events", "quotes"),
]


@pytest.fixture
async def sandbox() -> AsyncIterator[hutch.Hutch]:
    """A separate Hutch for each test, because a Hutch accepts only 16 different MCP configurations."""
    async with hutch.Hutch() as started:
        yield started


@contextlib.asynccontextmanager
async def serving(transport: str, result: str) -> AsyncIterator[dict[str, Any]]:
    """Yields the configuration of a server whose tool returns this result."""
    arguments = (hostile_results.__file__, transport, result)
    if transport == "stdio":
        yield {"s": {"command": sys.executable, "args": list(arguments)}}
        return
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe)
    assert process.stdout is not None
    try:
        yield {"s": {"type": "http", "url": f"http://127.0.0.1:{int(await process.stdout.readline())}/mcp"}}
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(("transport", "name"), CASES)
@repeat_on_stall
async def test_result_does_not_block_the_event_loop(sandbox: hutch.Hutch, transport: str, name: str) -> None:
    """In one step, it took a minute to describe the problems of 400,000 invalid blocks, and half a second to
    decode 900,000 values.
    """
    async with serving(transport, name) as servers:
        await sandbox.run("1", mcp=servers)
        async with LoopStalls() as stalls:
            result = await sandbox.run(CODE, mcp=servers, timeout_ms=60_000, memory_limit_bytes=500 << 20)
    assert result.error is None
    if name == "quotes":
        assert result.result == '"' * 4_000_000
    else:
        assert (
            result.result == "honest"
            if name == "honest"
            else "larger" in result.result or ("the result is not valid MCP: " in result.result)
        )
    stalls.assert_short()
