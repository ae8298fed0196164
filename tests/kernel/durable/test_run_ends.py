"""Ends of suspended runs: results, cancellation, expiry, and the death of their process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kernel.durable.suspension import ASK, PAST, Tools, refused, resumed, store_of, suspend, update

import hutch


async def test_expired_run_is_refused_and_ends(first: hutch.Hutch, tools: Tools) -> None:
    run_id, call_id = await suspend(first, tools)
    await update(
        first, "UPDATE checkpoints SET expires_at = :at WHERE run_id = :run_id", at=PAST, run_id=run_id
    )
    async with refused("checkpoint_expired"):
        await first.resume(run_id, {call_id: 1})
    assert await outcome_after_cleaning(first, run_id) == "expired"


async def test_run_that_was_continued_by_a_dead_process_can_be_continued_again(
    first: hutch.Hutch, tools: Tools
) -> None:
    run_id, call_id = await suspend(first, tools)
    store = await store_of(first)
    assert await store.checkpoints.take(run_id, "default", "dead", PAST)
    assert (await resumed(first, tools, run_id, {call_id: 1})).result == 1


async def test_run_that_called_a_tool_in_a_dead_process_is_interrupted(
    first: hutch.Hutch, tools: Tools
) -> None:
    run_id, call_id = await suspend(first, tools)
    store = await store_of(first)
    assert await store.checkpoints.take(run_id, "default", "dead", PAST)
    assert await store.checkpoints.mark_called(run_id, "dead")
    await store.write_behind.flush()
    async with refused("checkpoint_ended"):
        await first.resume(run_id, {call_id: 1})
    row = await store.runs.get(run_id)
    assert row is not None
    assert row.outcome == "interrupted"


async def outcome_after_cleaning(h: hutch.Hutch, run_id: str) -> str:
    store = await store_of(h)
    await store.write_behind.flush()
    assert await (await h._opened()).ends.end_interrupted() >= 1
    row = await store.runs.get(run_id)
    assert row is not None
    return row.outcome


async def test_process_that_lost_its_run_makes_no_call(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = "const x = await tools.ask({what: 'x'}); return await tools.count({n: x})"
    run_id, call_id = await suspend(first, tools, code)
    run = await first.resume(run_id, {call_id: 1}, tools=tools.all)
    await update(first, "UPDATE checkpoints SET holder = 'other' WHERE run_id = :run_id", run_id=run_id)
    error = (await run.result()).error
    assert error is not None
    assert "another process continues it" in error.message
    assert tools.calls == []


async def test_record_of_a_suspended_run_is_replaced_at_its_end(first: hutch.Hutch, tools: Tools) -> None:
    run_id, call_id = await suspend(first, tools)
    store = await store_of(first)
    await store.write_behind.flush()
    row = await store.runs.get(run_id)
    assert row is not None
    assert row.outcome == "suspended"
    await resumed(first, tools, run_id, {call_id: 1})
    await asyncio.sleep(0)
    await store.write_behind.flush()
    row = await store.runs.get(run_id)
    assert row is not None
    assert row.outcome == "ok"


async def test_cancelled_run_cannot_be_continued(first: hutch.Hutch, tools: Tools) -> None:
    run_id, call_id = await suspend(first, tools)
    assert not await (await first._opened()).ends.cancel(run_id, "somebody else")
    assert await (await first._opened()).ends.cancel(run_id, "default")
    async with refused("checkpoint_ended"):
        await first.resume(run_id, {call_id: 1})


WAIT_AFTER_SUSPEND = """
    const b = tools.ask({what: "b"});
    for (const end = Date.now() + 100; Date.now() < end;);
    return [await tools.wait({}), await b];"""


async def test_time_limit_ends_a_suspended_run_whose_tool_does_not_return(
    first: hutch.Hutch, tools: Tools
) -> None:
    error = (await first.run(WAIT_AFTER_SUSPEND, tools=tools.all, timeout_ms=500)).error
    assert error is not None
    assert error.code == "timeout"
    assert "tools.wait" in error.message


async def test_suspended_run_is_cancelled_while_a_tool_runs(first: hutch.Hutch, tools: Tools) -> None:
    run = await first.start(WAIT_AFTER_SUSPEND, tools=tools.all)
    await tools.waiting.wait()
    # Wait until the guest's loop has ended. From then on, the guest only waits for its calls, so the runner
    # suspends it.
    await asyncio.sleep(0.2)
    run.cancel()
    error = (await run.result()).error
    assert error is not None
    assert error.code == "timeout"


async def test_run_is_cancelled_while_it_is_stored(
    first: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_of(first)
    save = store.checkpoints.save

    async def save_and_cancel(*args: Any) -> bool:
        is_saved = await save(*args)
        run.cancel()
        return is_saved

    monkeypatch.setattr(store.checkpoints, "save", save_and_cancel)
    run = await first.start(ASK, tools=tools.all)
    error = (await run.result()).error
    assert error is not None
    assert error.code == "timeout"
    assert run.id is not None
    assert await store.checkpoints.get(run.id) is None


async def test_run_stays_suspended_if_its_caller_disconnects_while_it_is_stored(
    first: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_of(first)
    save, stored = store.checkpoints.save, []

    async def disconnect_and_save(row: Any, *args: Any) -> bool:
        calling.cancel()
        await asyncio.sleep(0)
        stored.append(row.run_id)
        return await save(row, *args)

    monkeypatch.setattr(store.checkpoints, "save", disconnect_and_save)
    calling = asyncio.ensure_future(first.run(ASK, tools=tools.all))
    with pytest.raises(asyncio.CancelledError):
        await calling
    await store.write_behind.flush()
    row = await store.runs.get(stored[0])
    assert row is not None
    assert row.outcome == "suspended"
    (call_id,) = await store.checkpoints.answers(row.run_id)
    assert (await resumed(first, tools, row.run_id, {call_id: 1})).result == 1


async def test_run_that_another_process_continues_is_cancelled(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = "await tools.ask({what: 'x'}); await tools.wait({}); return await tools.count({n: 1})"
    run_id, call_id = await suspend(first, tools, code)
    run = await second.resume(run_id, {call_id: 1}, tools=tools.all)
    await tools.waiting.wait()
    runs = await first._opened()
    assert not await runs.ends.cancel(run_id, "default")
    assert not await runs.ends.request_cancel(run_id, "somebody else")
    assert await runs.ends.request_cancel(run_id, "default")
    result = await run.result()
    assert not result.ok
    assert tools.calls == []
    assert not await runs.ends.request_cancel(run_id, "default")
