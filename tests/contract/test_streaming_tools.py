"""Async generators as tools: the guest reads values one by one or all at once. Also tests progress of
tools.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import Run

import hutch

TIMEOUT_SECONDS = 60


async def count(to: int) -> AsyncIterator[int]:
    """Counts."""
    for number in range(to):
        yield number


async def break_off() -> AsyncIterator[int]:
    yield 1
    raise hutch.ToolError("broken")


async def flood() -> AsyncIterator[str]:
    while True:
        yield "x" * 100_000


async def wrong_type() -> AsyncIterator[int]:
    yield "text"  # type: ignore[misc]


async def test_values_are_one_list_or_come_one_by_one(run: Run) -> None:
    code = """
        const items = [];
        for await (const item of tools.count({to: 3})) items.push(item);
        const [all, none] = await Promise.all([tools.count({to: 2}), tools.count({to: 0})]);
        return {items, all, none}
    """
    result = await run(code, tools=[count])
    assert result.raise_for_error().result == {"items": [0, 1, 2], "all": [0, 1], "none": []}


async def test_value_arrives_before_the_next_one_is_yielded(run: Run) -> None:
    received = asyncio.Event()

    async def steps() -> AsyncIterator[str]:
        yield "first"
        await asyncio.wait_for(received.wait(), TIMEOUT_SECONDS)
        yield "second"

    async def confirm() -> None:
        received.set()

    code = (
        "const seen = []; for await (const x of tools.steps()) { seen.push(x); await tools.confirm() } seen"
    )
    assert (await run(code, tools=[steps, confirm])).raise_for_error().result == ["first", "second"]


async def test_error_comes_after_the_values_before_it(run: Run) -> None:
    code = """
        const all = [];
        try { for await (const x of tools.break_off()) all.push(x) } catch (e) { all.push(e.code, e.message) }
        try { await tools.break_off() } catch (e) { all.push(e.message) }
        return all
    """
    result = await run(code, tools=[break_off])
    assert result.raise_for_error().result == [1, "tool_error", "broken", "broken"]


async def test_values_of_a_call_are_bounded_and_checked(run: Run) -> None:
    code = """
        const errors = [];
        for (const f of [tools.flood, tools.wrong_type]) await f().catch((e) => errors.push(e.code));
        return errors
    """
    result = await run(code, tools=[flood, wrong_type], timeout_ms=30_000)
    assert result.raise_for_error().result == ["serialization_error", "validation_error"]


async def test_generator_is_closed_when_the_execution_ends(run: Run) -> None:
    closed = asyncio.Event()

    async def forever() -> AsyncIterator[int]:
        with contextlib.ExitStack() as stack:
            stack.callback(closed.set)
            yield 1
            await asyncio.Event().wait()

    result = await run("for await (const x of tools.forever()) return x", tools=[forever])
    assert result.raise_for_error().result == 1
    await asyncio.wait_for(closed.wait(), TIMEOUT_SECONDS)


def test_declaration_says_that_a_tool_streams() -> None:
    async def untyped():  # type: ignore[no-untyped-def]
        yield 1

    declared = hutch.Provider.of(count, untyped).declarations()
    assert "function count(input: { to: number }): Promise<number[]> & AsyncIterable<number>;" in declared
    assert "function untyped(): Promise<unknown> & AsyncIterable<unknown>;" in declared


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_progress_and_values_are_events(sandbox: hutch.Hutch, engine: Any) -> None:
    async def work(context: hutch.ToolContext) -> None:
        context.progress({"percent": 50})

    def work_in_thread(context: hutch.ToolContext) -> None:
        context.progress("half")
        with pytest.raises(hutch.ToolError, match="not JSON"):
            context.progress(object())

    started = await sandbox.start(
        "await tools.work(); await tools.work_in_thread(); await tools.count({to: 2})",
        tools=[work, work_in_thread, count],
        engine=engine,
    )
    events = [event async for event in started]
    assert (await started.result()).ok
    tools = {event.call_id: event.tool for event in events if isinstance(event, hutch.ToolCallStarted)}
    progress = [
        (tools[event.call_id], event.value) for event in events if isinstance(event, hutch.ToolProgress)
    ]
    assert progress == [
        ("work", {"percent": 50}),
        ("work_in_thread", "half"),
        ("count", 0),
        ("count", 1),
    ]


async def test_progress_without_a_listener_does_nothing(run: Run) -> None:
    def work(context: hutch.ToolContext) -> None:
        context.progress(object())

    assert (await run("await tools.work()", tools=[work])).ok
