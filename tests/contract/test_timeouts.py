"""Timeouts and cancellation in every state of a guest: the execution ends promptly, and afterwards no tool is
called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.conftest import Run
from tests.support.processes import TIMEOUT_SECONDS

import hutch
from hutch.errors import HutchError

# Each guest first calls `tools.ready()` and then enters a state that it does not leave by itself.
STATES = {
    "waiting for a tool": "await tools.hang()",
    "waiting for many tools": "await Promise.all([...Array(300).keys()].map(() => tools.hang()))",
    "pending await": "await new Promise(() => {})",
    "long timer": "await new Promise((resolve) => setTimeout(resolve, 1e9))",
    "endless loop": "for (;;);",
    "loop with catch": "for (;;) { try { for (;;); } catch {} finally { } }",
    "loop of awaits": "for (;;) await 0",
    "loop of timers": "for (;;) await new Promise((resolve) => setTimeout(resolve, 1))",
    "loop of tool calls": "for (;;) await tools.ready()",
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
    """Tools `ready`, which reports that the guest is running, and `hang`, which never returns."""

    def __init__(self) -> None:
        self.guest_ready = anyio.Event()
        self.calls = 0
        self.cancelled = 0

    def all(self) -> list[Callable[..., Any]]:
        async def ready() -> None:
            self.calls += 1
            self.guest_ready.set()

        async def hang() -> None:
            self.calls += 1
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        return [ready, hang]


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
async def test_timeout_ends_the_execution_in_every_state(run: Run, state: str) -> None:
    tools = Tools()
    started = time.monotonic()
    result = await run(f"await tools.ready();\n{state}", tools=tools.all(), timeout_ms=150)
    elapsed = time.monotonic() - started
    assert result.error is not None
    assert result.error.code == "timeout"
    assert result.error.message.startswith("Execution timed out after 150 ms")
    assert result.duration_ms >= 149
    assert 0.149 <= elapsed < 15


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
async def test_cancelling_the_call_ends_the_execution_in_every_state(run: Run, state: str) -> None:
    tools = Tools()
    task = asyncio.create_task(run(f"await tools.ready();\n{state}", tools=tools.all(), timeout_ms=60_000))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await tools.guest_ready.wait()
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 15
    calls = tools.calls
    # Afterwards, the sandbox still runs code, and the cancelled execution calls no more tools.
    assert (await run("1 + 1")).result == 2
    assert tools.calls == calls


async def test_cancelling_cancels_running_tools(run: Run) -> None:
    tools = Tools()
    code = (
        "const waits = [tools.hang(), tools.hang(), tools.hang()];\nawait tools.ready();\nawait"
        " Promise.all(waits)"
    )
    task = asyncio.create_task(run(code, tools=tools.all()))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await tools.guest_ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.cancelled == 3


async def test_timeout_cancels_running_tools(run: Run) -> None:
    tools = Tools()
    await run("await Promise.all([tools.hang(), tools.hang()])", tools=tools.all(), timeout_ms=600)
    await asyncio.sleep(0)
    assert tools.cancelled == 2


async def test_no_tool_is_called_after_a_timeout(run: Run) -> None:
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


async def test_call_cancelled_before_it_starts_runs_nothing(run: Run) -> None:
    tools = Tools()
    task = asyncio.create_task(run("await tools.ready()", tools=tools.all()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await run("1")).result == 1
    assert tools.calls == 0


async def test_tool_that_ignores_its_cancellation_does_not_delay_the_result(run: Run) -> None:
    released = anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await released.wait()

    result = await run("await tools.stubborn()", tools=[stubborn], timeout_ms=150)
    assert result.error is not None
    assert result.error.code == "timeout"
    released.set()


async def test_tool_that_cancels_itself_ends_neither_host_nor_sandbox(run: Run) -> None:
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    result = await run("await tools.cancel_itself()", tools=[cancel_itself])
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "Tool cancel_itself was cancelled")
    assert (await run("1")).result == 1


async def test_shortest_timeout_is_reported_as_a_timeout(run: Run) -> None:
    result = await run("for (;;);", timeout_ms=1)
    assert result.error is not None
    assert result.error.code == "timeout"


LATE_ENDS = {
    "late result": "const end = Date.now() + 330; while (Date.now() < end); return 'late'",
    "late error": "const end = Date.now() + 330; while (Date.now() < end); throw 'late'",
    "interruption caught by a promise": "new Promise(() => { for (;;); }).catch(() => {}); 'late'",
    "interruption caught around a getter": (
        "await tools.echo({ get value() { for (;;); } }).catch(() => {}); 'late'"
    ),
}


@pytest.mark.parametrize("code", LATE_ENDS.values(), ids=LATE_ENDS)
async def test_late_end_is_a_timeout_even_if_the_guest_caught_the_interruption(run: Run, code: str) -> None:
    result = await run(code, tools=[echo], timeout_ms=300)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert result.error.message.startswith("Execution timed out after 300 ms")


async def test_timeout_names_the_tools_that_the_guest_waited_for(run: Run) -> None:
    hang = Tools().all()[1]
    many = [hutch.tool(hang, name=f"hang{number}") for number in range(5)]
    one = await run("await tools.hang0()", tools=many, timeout_ms=300)
    assert one.error is not None
    assert one.error.message == "Execution timed out after 300 ms, waiting for tools.hang0"
    every = await run("await Promise.all(Object.values(tools).map((f) => f()))", tools=many, timeout_ms=1_500)
    assert every.error is not None
    assert every.error.message == (
        "Execution timed out after 1.5 s, waiting for tools.hang0, tools.hang1, tools.hang2 and 2 other tools"
    )


@pytest.mark.parametrize("engine", ["quickjs"])
@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("console.log(1);\nwhile (true) {}", 2),
        ("let a = 1;\nlet b = 2;\nlet i = 0;\nwhile (true) { i++ }", 4),
        ("function f() {\n  let k = 0;\n  while (true) { k++ }\n}\n\nf()", 3),
        ("class A { m() {\n  let k = 0;\n  for (;;) k++\n} }\n\nnew A().m()", 3),
        ("[1].map((n: number) => {\n  while (n) { n++ }\n})", 2),
    ],
)
async def test_timeout_names_the_line_of_a_loop_without_calls(run: Run, code: str, line: int) -> None:
    message = f"Execution timed out after 200 ms, near line {line}"
    # On a busy machine, the runner may be too slow to report the line.
    for _ in range(5):
        result = await run(code, timeout_ms=200)
        if result.stack is not None:
            break
    assert result.error is not None
    assert result.error.message == message


@pytest.mark.parametrize("engine", ["quickjs"])
@pytest.mark.parametrize("others", [0, 3])
async def test_timeout_of_a_busy_guest_says_where_it_was(run: Run, others: int) -> None:
    code = "function busy() {\n  for (;;) Math.sqrt(2)\n}\n\nbusy()"
    # On a busy machine, the runner may be too slow to report the line. Then the host returns the timeout
    # without a line. So try several times.
    for _ in range(5):
        async with asyncio.TaskGroup() as group:
            for _ in range(others):
                group.create_task(run("for (;;);", timeout_ms=600))
            result = await run(code, timeout_ms=300)
        if result.stack is not None:
            break
    assert result.error is not None
    assert result.error.message in [f"Execution timed out after 300 ms, near line {line}" for line in (1, 2)]
    assert result.stack is not None
    assert [frame.partition(" (")[0] for frame in result.stack.split("\n")] == [
        "at busy",
        "at line 5, column 1",
    ]


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_guest_cannot_run_code_when_its_stack_is_read_after_the_timeout(run: Run) -> None:
    code = """Object.defineProperty(Error.prototype, "stack", { get() { for (;;); } });
        Error.prepareStackTrace = () => ({ toString() { for (;;); } });
        for (;;);"""
    result = await run(code, timeout_ms=200)
    assert result.error is not None
    assert result.error.message == "Execution timed out after 200 ms"
    assert (await run("1")).result == 1


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_interrupted_guest_can_neither_log_nor_call_tools(run: Run) -> None:
    called: list[Any] = []

    async def call(value: Any, /) -> None:
        called.append(value)

    code = "new Promise(() => { for (;;); }).catch(() => {}); console.log('after'); tools.call(1); 'late'"
    result = await run(code, tools=[call], timeout_ms=300)
    assert (result.ok, result.logs, called) == (False, [], [])


async def test_execution_that_ends_in_time_has_no_timeout(run: Run) -> None:
    code = "await new Promise((resolve) => setTimeout(resolve, 50)); return 'in time'"
    assert (await run(code, timeout_ms=2_000)).result == "in time"


async def test_guest_cannot_report_a_false_timeout(run: Run) -> None:
    result = await run("throw Object.assign(new Error('Execution timed out'), { code: 'timeout' })")
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_anyio_deadline_around_the_call_cancels_it(run: Run) -> None:
    with anyio.move_on_after(0.2) as scope:
        await run("for (;;) await 0", timeout_ms=60_000)
    assert scope.cancelled_caught
    assert (await run("1")).result == 1


async def test_closed_sandbox_raises_an_error(engine: str) -> None:
    import hutch

    closed = hutch.Hutch()
    async with closed:
        assert (await closed.run("1", engine=engine)).result == 1
    with pytest.raises(HutchError, match="closed"):
        await closed.run("1", engine=engine)
