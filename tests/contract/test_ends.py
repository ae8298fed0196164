"""Timeouts and cancellation in every state a guest can be in: prompt, final, and without host work after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.conftest import Run
from tests.processes import PATIENCE

from hutch.errors import HutchError

# A guest that is ready says so first; then it is in a state that it does not leave by itself.
STATES = {
    "a tool wait": "await tools.hang()",
    "many tool waits": "await Promise.all([...Array(300).keys()].map(() => tools.hang()))",
    "an await": "await new Promise(() => {})",
    "a long timer": "await new Promise((resolve) => setTimeout(resolve, 1e9))",
    "a loop": "for (;;);",
    "a loop that catches": "for (;;) { try { for (;;); } catch {} finally { } }",
    "a loop of awaits": "for (;;) await 0",
    "a loop of timers": "for (;;) await new Promise((resolve) => setTimeout(resolve, 1))",
    "a loop of tool calls": "for (;;) await tools.ready()",
    "catching a tool's rejection": "for (;;) { try { await tools.hang() } catch {} }",
    "catching everything": (
        "const stubborn = async () => { for (;;) { try { await tools.hang(); } catch { } finally {"
        " await 0 } } };\n"
        "try { await stubborn() } catch { await stubborn() } finally { await stubborn() }"
    ),
}


async def echo(value: Any, /) -> Any:
    return value


class Tools:
    """A tool that says that the guest is there, and one that never answers."""

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.calls = 0
        self.cancelled = 0

    def all(self) -> list[Callable[..., Any]]:
        async def ready() -> None:
            self.calls += 1
            self.there.set()

        async def hang() -> None:
            self.calls += 1
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        return [ready, hang]


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
async def test_a_timeout_ends_the_execution_in_every_state(run: Run, state: str) -> None:
    tools = Tools()
    began = time.monotonic()
    result = await run(f"await tools.ready();\n{state}", tools=tools.all(), timeout_ms=150)
    took = time.monotonic() - began
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("timeout", "Execution timed out")
    assert result.duration_ms >= 149
    assert 0.149 <= took < 3


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
async def test_cancelling_the_call_ends_the_execution_in_every_state(run: Run, state: str) -> None:
    tools = Tools()
    task = asyncio.create_task(run(f"await tools.ready();\n{state}", tools=tools.all(), timeout_ms=60_000))
    with anyio.fail_after(PATIENCE):
        await tools.there.wait()
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 3
    calls = tools.calls
    # The sandbox serves others, and the tools of the cancelled one are not called any more.
    assert (await run("1 + 1")).result == 2
    assert tools.calls == calls


async def test_cancelling_cancels_the_tools_that_run(run: Run) -> None:
    tools = Tools()
    code = (
        "const waits = [tools.hang(), tools.hang(), tools.hang()];\nawait tools.ready();\nawait"
        " Promise.all(waits)"
    )
    task = asyncio.create_task(run(code, tools=tools.all()))
    with anyio.fail_after(PATIENCE):
        await tools.there.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.cancelled == 3


async def test_a_timeout_cancels_the_tools_that_run(run: Run) -> None:
    tools = Tools()
    await run("await Promise.all([tools.hang(), tools.hang()])", tools=tools.all(), timeout_ms=600)
    await asyncio.sleep(0)
    assert tools.cancelled == 2


async def test_after_a_timeout_no_tool_starts_host_work(run: Run) -> None:
    tools = Tools()
    code = "for (;;) { try { await Promise.all([tools.ready(), tools.ready()]) } catch {} }"
    result = await run(code, tools=tools.all(), timeout_ms=500)
    assert result.error is not None
    assert result.error.code == "timeout"
    calls = tools.calls
    assert calls > 0
    for _ in range(5):
        assert (await run("1")).result == 1
    assert tools.calls == calls


async def test_a_caller_who_cancelled_before_the_start_starts_nothing(run: Run) -> None:
    tools = Tools()
    task = asyncio.create_task(run("await tools.ready()", tools=tools.all()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await run("1")).result == 1
    assert tools.calls == 0


async def test_a_tool_that_ignores_its_cancellation_holds_up_nobody(run: Run) -> None:
    released = anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await released.wait()

    result = await run("await tools.stubborn()", tools=[stubborn], timeout_ms=150)
    assert result.error is not None
    assert result.error.code == "timeout"
    released.set()


async def test_a_tool_that_cancels_itself_ends_neither_host_nor_sandbox(run: Run) -> None:
    async def leave() -> None:
        raise asyncio.CancelledError

    result = await run("await tools.leave()", tools=[leave])
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "Tool leave was cancelled")
    assert (await run("1")).result == 1


async def test_a_timeout_shorter_than_anything_is_a_timeout(run: Run) -> None:
    result = await run("for (;;);", timeout_ms=1)
    assert result.error is not None
    assert result.error.code == "timeout"


LATE = {
    "a result that took too long": "const end = Date.now() + 330; while (Date.now() < end); return 'late'",
    "an error that took too long": "const end = Date.now() + 330; while (Date.now() < end); throw 'late'",
    "an end that a promise caught": "new Promise(() => { for (;;); }).catch(() => {}); 'late'",
    "an end that a getter's caller caught": (
        "await tools.echo({ get value() { for (;;); } }).catch(() => {}); 'late'"
    ),
}


@pytest.mark.parametrize("code", LATE.values(), ids=LATE)
async def test_what_comes_after_the_time_is_over_is_a_timeout_whoever_caught_its_end(
    run: Run, code: str
) -> None:
    result = await run(code, tools=[echo], timeout_ms=300)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("timeout", "Execution timed out")


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_nothing_that_a_stopped_guest_does_is_seen(run: Run) -> None:
    called: list[Any] = []

    async def call(value: Any, /) -> None:
        called.append(value)

    code = "new Promise(() => { for (;;); }).catch(() => {}); console.log('after'); tools.call(1); 'late'"
    result = await run(code, tools=[call], timeout_ms=300)
    assert (result.ok, result.logs, called) == (False, [], [])


async def test_an_execution_that_ends_in_time_is_no_timeout(run: Run) -> None:
    code = "await new Promise((resolve) => setTimeout(resolve, 50)); return 'in time'"
    assert (await run(code, timeout_ms=2_000)).result == "in time"


async def test_a_guest_cannot_report_a_timeout_that_is_none(run: Run) -> None:
    result = await run("throw Object.assign(new Error('Execution timed out'), { code: 'timeout' })")
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_an_anyio_deadline_around_the_call_works_too(run: Run) -> None:
    with anyio.move_on_after(0.2) as scope:
        await run("for (;;) await 0", timeout_ms=60_000)
    assert scope.cancelled_caught
    assert (await run("1")).result == 1


async def test_a_closed_sandbox_says_so(engine: str) -> None:
    import hutch

    closed = hutch.Hutch()
    async with closed:
        assert (await closed.run("1", engine=engine)).result == 1
    with pytest.raises(HutchError, match="closed"):
        await closed.run("1", engine=engine)
