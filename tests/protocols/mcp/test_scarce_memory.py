"""Runs of `run_code` are stored when memory is scarce."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.protocols.mcp.durable_server import DurableServer, serving
from tests.protocols.mcp.harness import text_of
from tests.support.processes import TIMEOUT_SECONDS

from hutch.kernel.durable.memory_pressure import MemoryPressure
from hutch.session.run import RunSuspended

CODE = "let data = 'x'.repeat(1000); return [data.length, await tools.github.wait({})]"


class StoredRun:
    """Sets `is_stored` when a run of the server is stored."""

    def __init__(self, server: DurableServer) -> None:
        self.is_stored = asyncio.Event()
        server.app.kernel.on_begin.append(lambda _, run: run.listeners.append(self._listen))

    def _listen(self, event: Any) -> None:
        if isinstance(event, RunSuspended):
            self.is_stored.set()


async def test_run_that_waits_for_a_tool_is_stored_and_continues(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, asyncio.timeout(TIMEOUT_SECONDS):
        server.upstream.functions["wait"] = server.upstream.wait
        stored, kernel = StoredRun(server), server.app.kernel
        running = asyncio.create_task(client.call_tool("run_code", {"code": CODE, "language": "javascript"}))
        await server.upstream.called.wait()
        ((run_id, (_, run)),) = kernel.active.items()
        # With a maximum share of 0, the real memory of this process is always above the limit.
        assert MemoryPressure(kernel, max_process_share=0, free_share=lambda: 1.0).check() == [run_id]
        await stored.is_stored.wait()
        assert run.session is not None
        assert run.session.saved is not None
        assert run.session.saved.memory == []
        assert await server.app.suspended_runs.state(run_id) == "running"
        server.upstream.released.set()
        assert text_of(await running) == '[1000,"went"]\n\n(1 tool call)'
        assert await server.app.suspended_runs.state(run_id) == "ended"


async def test_turn_of_a_session_is_not_stored_while_it_waits(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, asyncio.timeout(TIMEOUT_SECONDS):
        server.upstream.functions["wait"] = server.upstream.wait
        running = asyncio.create_task(client.call_tool("run_code", {"code": CODE, "session": "work"}))
        await server.upstream.called.wait()
        pressure = MemoryPressure(server.app.kernel, max_process_share=0, free_share=lambda: 1.0)
        assert pressure.check() == []
        server.upstream.released.set()
        assert '[1000,"went"]' in text_of(await running)
