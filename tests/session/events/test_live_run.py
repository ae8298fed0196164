"""Started runs: events in order, bounded buffer, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hutch
from hutch.session.events import live_run
from hutch.session.events.live_run import Run
from hutch.session.run import Result, RunHandle

TIMEOUT_SECONDS = 60


def add(a: int, b: int) -> int:
    return a + b


def fail() -> None:
    raise hutch.ToolError("no")


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_events_come_in_order_with_inputs_and_outputs_of_calls(
    sandbox: hutch.Hutch, engine: Any
) -> None:
    code = """
        console.log("before");
        const sum = await tools.add({a: 1, b: 2});
        try { await tools.fail() } catch {}
        console.log(sum);
        return sum
    """
    run = await sandbox.start(code, tools=[add, fail], engine=engine)
    events = [event async for event in run]
    result = await run.result()
    seen: list[Any] = []
    calls = {event.call_id: event.tool for event in events if isinstance(event, hutch.ToolCallStarted)}
    for event in events:
        match event:
            case hutch.RunLog():
                seen.append(event.line)
            case hutch.ToolCallStarted():
                seen.append((event.provider, event.tool, event.line, event.input))
            case hutch.ToolCallEnded():
                seen.append((calls[event.call_id], event.ok, event.code or None, event.output))
            case hutch.RunStarted():
                seen.append(event.run_id)
            case hutch.RunEnded():
                seen.append(event.result)
            case _:
                seen.append(type(event))
    assert 'tool=\'add\', line=3, input={"a":1,"b":2}, at=' in str(events).replace(
        '"a": 1, "b": 2', '"a":1,"b":2'
    )
    assert seen == [
        hutch.RunQueued,
        run.id,
        "before",
        ("tools", "add", 3, {"a": 1, "b": 2}),
        ("add", True, None, 3),
        ("tools", "fail", 4, None),
        ("fail", False, "tool_error", None),
        "3",
        result,
    ]
    assert (result.result, result.run_id) == (3, run.id)
    assert [event.at for event in events] == sorted(event.at for event in events)


async def test_log_line_is_an_event_while_the_guest_runs(sandbox: hutch.Hutch) -> None:
    seen = asyncio.Event()

    async def wait() -> None:
        await asyncio.wait_for(seen.wait(), TIMEOUT_SECONDS)

    run = await sandbox.start("console.log('now'); await tools.wait()", tools=[wait])
    async for event in run:
        if isinstance(event, hutch.RunLog):
            seen.set()
    assert (await run.result()).ok


async def test_cancelled_run_ends_with_its_logs() -> None:
    # On a busy machine, the runner may take longer than the default grace period.
    async with hutch.Hutch(cancel_grace_ms=TIMEOUT_SECONDS * 1000) as sandbox:
        run = await sandbox.start("console.log('now'); await new Promise(() => {})", timeout_ms=60_000)
        async for event in run:
            if isinstance(event, hutch.RunLog):
                run.cancel()
        result = await run.result()
    assert (result.error and result.error.code, result.logs) == ("timeout", ["now"])


async def test_run_that_is_cancelled_before_it_starts_has_a_result_and_an_end() -> None:
    async def execute(handle: RunHandle) -> Result:
        raise AssertionError

    run = Run(execute)
    run.cancel()
    assert [type(event) for event in [event async for event in run]] == [hutch.RunEnded]
    assert (await run.result()).run_id == run.id


async def test_invalid_arguments_are_refused_at_once(sandbox: hutch.Hutch) -> None:
    with pytest.raises(hutch.InvalidExecution):
        await sandbox.start("1", timeout_ms=-1)
    with pytest.raises(TypeError, match="timeout"):
        await sandbox.start("1", timeout=4)  # type: ignore[call-arg]


async def test_iteration_raises_what_kept_the_execution_from_starting() -> None:
    async def execute(handle: RunHandle) -> Result:
        raise hutch.Busy("All runners are busy.", retry_after=1)

    run = Run(execute)
    with pytest.raises(hutch.Busy):
        [event async for event in run]
    with pytest.raises(hutch.Busy):
        await run.result()


async def test_unread_events_are_bounded_but_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "MAX_BUFFERED_EVENTS", 3)
    monkeypatch.setattr(live_run, "MAX_BUFFERED_BYTES", 10)

    async def execute(handle: RunHandle) -> Result:
        for line in ("12345678901", "a", "b", "c", "d"):
            handle.emit(hutch.RunLog(line=line))
        handle.end(result := Result(ok=True))
        return result

    run = Run(execute)
    await run.result()
    events = [event async for event in run]
    assert [event.line for event in events if isinstance(event, hutch.RunLog)] == ["a", "b", "c"]
    assert isinstance(events[-1], hutch.RunEnded)
    assert run.dropped_events == 2
