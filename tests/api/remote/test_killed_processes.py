"""Suspended runs of `hutch.connect` whose server or client dies or stops."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

from tests.api.remote.suspension import CODE, Tools, suspended
from tests.support.processes import running_server

import hutch
from hutch.api.remote import Remote
from hutch.errors import ResumeError

CLIENT = """
import asyncio, sys
import hutch

async def wait() -> str:
    await asyncio.Event().wait()

@hutch.tool(idempotent=True)
async def lookup() -> str:
    await asyncio.Event().wait()

async def main():
    code = '''
        const settle = (promise) => promise.catch((error) => error.message);
        return await Promise.all([settle(tools.wait()), settle(tools.lookup())]);'''
    async with hutch.connect(sys.argv[1]) as h:
        run = await h.start(code, tools=[wait, lookup], timeout_ms=60_000)
        async for event in run:
            if isinstance(event, hutch.RunSuspended):
                assert len(event.calls) == 2
                print(run.id, flush=True)

asyncio.run(main())
"""


async def test_run_survives_the_death_of_its_server(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path)}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            files = {"a.txt": "input"}
            code = f"await files.write('b.txt', await files.text('a.txt')); {CODE}"
            result = await suspended(h, tools, code, files=files)
            first.process.kill()
            first.wait()
            (call,) = result.pending_calls
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            # The server has no tools of this run, so it leaves the run to the client.
            other = Tools()
            run = await h.resume(result.run_id, {call.call_id: "yes"}, tools=other.all)
            end = await run.result()
    assert end.raise_for_error().result["answer"] == "yes"
    assert [(file.name, file.data) for file in end.files] == [("b.txt", b"input")]
    assert (tools.calls, other.calls) == ([1], [2])


async def test_waiting_run_survives_the_death_of_its_client(tmp_path: Path, tools: Tools) -> None:
    @hutch.tool(idempotent=True)
    async def lookup() -> str:
        return "found"

    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_CHECKPOINT_AFTER_MS="1") as server:
        command = [sys.executable, "-c", CLIENT, server.execbox]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        run_id = (await client.stdout.readline()).decode().strip()
        client.kill()
        await client.wait()
        async with hutch.connect(server.execbox) as h:
            again = await resume_when_released(h, run_id, [*tools.all, lookup])
            waited, found = (await again.result()).raise_for_error().result
    assert found == "found"
    assert "the call may have had an effect" in waited
    assert tools.calls == []


async def resume_when_released(h: Remote, run_id: str, tools: Any) -> hutch.Run:
    """Resumes a run as soon as its server has noticed that the client is lost."""
    while True:
        try:
            return await h.resume(run_id, tools=tools)
        except ResumeError as error:
            assert error.code == "checkpoint_in_use"  # noqa: PT017 - the loop ends with another code


def pass_hold_time(home: Path) -> None:
    """Makes other servers believe that the time has passed after which a process counts as dead."""
    with sqlite3.connect(next(home.glob("*.db"))) as database:
        database.execute("UPDATE checkpoints SET held_until = '2020-01-01T00:00:00.000Z'")


async def test_waiting_run_survives_the_death_of_its_server(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path), "HUTCH_CHECKPOINT_AFTER_MS": "1"}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            code = "return await Promise.all([tools.wait(), 1]).catch((error) => error.message)"
            run = await h.start(code, tools=tools.all, timeout_ms=60_000)
            async for event in run:
                if isinstance(event, hutch.RunSuspended):
                    break
            first.process.kill()
            first.wait()
            lost = await run.result()
            assert lost.error is not None
            assert (lost.error.code, lost.run_id) == ("internal_error", run.id)
    pass_hold_time(tmp_path)
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            again = await h.resume(lost.run_id, tools=tools.all)
            assert "the call may have had an effect" in (await again.result()).result
    assert tools.calls == [0]


async def test_stored_run_stays_suspended_when_its_server_stops(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path), "HUTCH_CHECKPOINT_AFTER_MS": "1", "HUTCH_DRAIN_SECONDS": "0.1"}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            code = "return await tools.wait().catch((error) => error.message)"
            run = await h.start(code, tools=tools.all, timeout_ms=60_000)
            async for event in run:
                if isinstance(event, hutch.RunSuspended):
                    first.process.terminate()
            result = await run.result()
            assert result.error is not None
            assert result.error.code == "suspended"
            assert result.error.message == "The server stopped, and has stored the run. Continue it by its id"
        first.wait()
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            again = await h.resume(result.run_id, tools=tools.all)
            assert "the call may have had an effect" in (await again.result()).result
