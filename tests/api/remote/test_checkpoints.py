"""Checkpoints that a client of `hutch.connect` takes itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.api.remote.suspension import MASTER_KEY, Tools, refusal
from tests.support.processes import ServeProcess, running_server

import hutch
from hutch.api.remote import Remote
from hutch.errors import InvalidExecution, ResumeError


async def test_checkpoint_continues_on_another_server(
    tmp_path: Path, server: ServeProcess, h: Remote, tools: Tools
) -> None:
    run = await h.start(
        "const x = await tools.wait(); await files.write('x', x); return [x, await tools.count({n: 2})]",
        tools=tools.all,
        timeout_ms=60_000,
    )
    await tools.waiting.wait()
    sealing = asyncio.create_task(run.checkpoint())
    await asyncio.sleep(0)
    tools.go_on.set()
    sealed = await sealing
    result = await run.result()
    assert result.error is not None
    assert result.error.code == "suspended"
    other = Tools()
    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_MASTER_KEY=MASTER_KEY) as second:
        async with hutch.connect(second.execbox) as client:
            assert await refusal(client, result.run_id) == "checkpoint_not_found"
            again = await client.resume(sealed, tools=other.all)
            assert again.id == run.id
            end = await again.result()
            assert await refusal(client, sealed) == "checkpoint_ended"
    assert end.raise_for_error().result == ["waited", 2]
    assert [file.data for file in end.files] == [b"waited"]
    assert (tools.calls, other.calls) == ([0], [2])
    # The server of the run has it, too.
    assert (await (await h.resume(result.run_id, tools=tools.all)).result()).result == ["waited", 2]


async def test_sealed_run_of_a_program_is_not_added_to_the_server(
    tmp_path: Path, h: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_MASTER_KEY", MASTER_KEY)
    async with hutch.Hutch(home=str(tmp_path)) as local:
        code = "await new Promise((resolve) => setTimeout(resolve, 60_000))"
        sealed = await (await local.start(code, timeout_ms=60_000, owner="local")).checkpoint()
    assert await refusal(h, sealed) == "tools_elsewhere"


async def test_invalid_sealed_bytes_are_refused(h: Remote, tools: Tools) -> None:
    run = await h.start("await tools.ask({what: 'a'})", tools=tools.all)
    await run.result()
    sealed = await h._seal(run.id or "")
    # Do not change the last character, because Base64 may not use all of its bits.
    changed = sealed[:-9] + (b"A" if sealed[-9:-8] != b"A" else b"B") + sealed[-8:]
    assert await refusal(h, changed) == "checkpoint_invalid"
    assert await refusal(h, b"") == "checkpoint_invalid"
    with pytest.raises(InvalidExecution, match=r"files: expected at most \d+ bytes .*max_checkpoint_bytes"):
        await h.resume(b"x" * 80_000_000)


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_checkpoint_of_a_run_that_cannot_be_suspended(h: Remote, engine: Any) -> None:
    code = "return 1" if engine == "quickjs" else "await new Promise(() => {})"
    run = await h.start(code, engine=engine, timeout_ms=60_000)
    with pytest.raises(ResumeError) as refused:
        await run.checkpoint()
    assert refused.value.code == ("checkpoint_ended" if engine == "quickjs" else "checkpoint_invalid")
    run.cancel()
    await run.result()


async def test_too_large_run_refuses_a_checkpoint_and_continues(tmp_path: Path) -> None:
    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_MAX_CHECKPOINT_BYTES="100000") as server:
        async with hutch.connect(server.execbox) as h:
            code = "const a = 'x'.repeat(1e6) + Math.random(); await tools.go(); return a.length > 1e6"
            go = asyncio.Event()

            async def wait() -> None:
                await go.wait()

            run = await h.start(code, tools={"tools": [hutch.tool(wait, name="go")]}, timeout_ms=60_000)
            with pytest.raises(ResumeError, match="max_checkpoint_bytes"):
                await run.checkpoint()
            go.set()
            assert (await run.result()).result is True
