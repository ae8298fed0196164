"""Calls of host tools: error codes, concurrency, blocking tools, and the tool context."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import anyio
import pytest
from tests.conftest import Run
from tests.support.processes import TIMEOUT_SECONDS

from hutch import Hutch, Provider, ToolCallEnded, ToolContext, ToolError, tool
from hutch.api.agent_tool import text_for_model
from hutch.kernel.error_hints import PROMISE_WARNING


async def echo(value: Any, /) -> Any:
    return value


# --- errors ---


async def fail(code: str = "tool_error", message: str = "it broke") -> None:
    raise ToolError(message, code)


async def test_tool_error_is_an_error_with_message_and_code_in_the_guest(run: Run) -> None:
    code = "try { await tools.fail({}) } catch (e) { return [e instanceof Error, e.message, e.code] }"
    assert (await run(code, tools=[fail])).result == [True, "it broke", "tool_error"]


async def test_exception_of_a_tool_is_a_tool_error_with_its_message(run: Run) -> None:
    async def explode() -> None:
        raise KeyError("missing thing")

    result = await run("await tools.explode()", tools=[explode])
    assert result.error is not None
    assert result.error.code == "tool_error"
    assert "missing thing" in result.error.message


async def test_tool_that_would_exit_the_process_only_fails_its_call(run: Run) -> None:
    def exit_in_thread() -> None:
        sys.exit(3)

    async def exit_in_coroutine() -> None:
        raise SystemExit(4)

    for name in ("exit_in_thread", "exit_in_coroutine"):
        result = await run(f"await tools.{name}()", tools=[exit_in_thread, exit_in_coroutine])
        assert result.error is not None
        assert result.error.code == "tool_error"


@pytest.mark.parametrize(
    "code", ["tool_error", "validation_error", "runtime_error", "timeout", "memory_limit", "internal_error"]
)
async def test_uncaught_tool_error_becomes_the_executions_error(run: Run, code: str) -> None:
    result = await run(f"await tools.fail({{ code: {code!r} }})", tools=[fail])
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, "it broke")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("tools.fail({ code: 'tool_error' })", "tool_error"),
        ("tools.fail(10n)", "serialization_error"),
        ("tools.fail(1)", "validation_error"),
    ],
)
async def test_uncaught_tool_error_names_the_position_of_the_call(run: Run, call: str, code: str) -> None:
    source = f"await tools.echo(1);\nconst later = async () => {{\n  await {call};\n}};\nawait later()"
    result = await run(source, tools=[echo, fail])
    assert result.error is not None
    assert (result.error.code, result.error.line) == (code, 3)
    assert result.error.column is not None
    assert result.error.column >= source.split("\n")[2].index("tools") + 1


async def test_stack_of_a_caught_tool_error_is_not_formatted(run: Run, engine: str) -> None:
    code = """
        let written = 0;
        Error.prepareStackTrace = () => { written++; return "" };
        for (let i = 0; i < 3; i++) await tools.fail({ code: "tool_error" }).catch(() => {});
        return written"""
    result = await run(code, tools=[fail])
    # Only QuickJS may call `prepareStackTrace`, because only QuickJS formats the stack when an error is
    # created.
    assert result.result == 0 or engine == "quickjs"


async def test_guest_that_breaks_stack_traces_only_loses_the_position(run: Run) -> None:
    break_stacks = "Error.prepareStackTrace = () => { throw 1 }; Error.stackTraceLimit = 0;\n"
    result = await run(f"{break_stacks}await tools.fail({{ code: 'tool_error' }})", tools=[fail])
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "it broke")


async def test_call_of_an_unknown_tool_names_it_and_lists_the_available_ones(run: Run) -> None:
    result = await run("const text = 'tools.fail()';\nawait tools.missing(text)", tools=[echo, fail])
    assert result.error is not None
    assert (result.error.code, result.error.name, result.error.line) == ("runtime_error", "TypeError", 2)
    assert result.error.message == "tools.missing is not a function; tools has echo, fail"


async def test_forgotten_await_and_missing_namespace_are_explained(run: Run) -> None:
    cases = {
        "return await echo(1)": "echo is not defined; did you mean tools.echo?",
        "return await tool.echo(1)": "tool is not defined; did you mean tools?",
        "return await search({})": "search is not defined; did you mean tools.shop.search?",
        "return await shop.search({})": "shop is not defined; did you mean tools.shop?",
        "return await files.search({})": "; did you mean tools.files.search?",
        "const found = tools.echo({});\nreturn found.items.length": "; tools.echo() returns a promise",
        "const { items } = tools.shop.search({});\nreturn items.length": "; tools.shop.search() returns",
        "const found = tools.echo([]);\nfor (const each of found) return each": "; tools.echo() returns",
    }
    search = {"search": tool(echo, name="search")}
    providers = [Provider.of(echo), *(Provider(name, search, parent="tools") for name in ("shop", "files"))]
    for code, expected in cases.items():
        result = await run(code, tools=providers)
        assert result.error is not None
        assert expected in result.error.message, (code, result.error.message)
    correct = "const found = tools.echo({});\nconst other = {};\nreturn (await found, other.a.b)"
    other = await run(correct, tools=providers)
    assert other.error is not None
    assert "await" not in other.error.message


async def test_promise_that_became_a_text_is_a_warning(run: Run) -> None:
    result = await run("return `found: ${tools.echo(1)}`", tools=[echo])
    assert result.result == "found: [object Promise]"
    assert PROMISE_WARNING in result.warnings
    assert PROMISE_WARNING in text_for_model(result, 1_000)
    assert (await run("return `found: ${await tools.echo(1)}`", tools=[echo])).warnings == ()


UNENDED = (
    "1 call of tools.add (line {line}) had not ended when the code returned, and may not have been made."
    " Did you forget `await`?"
)


async def add(a: float, b: float) -> float:
    return a + b


async def test_call_without_await_is_a_warning_and_recorded(sandbox: Hutch, engine: Any) -> None:
    async def stay(a: int) -> None:
        await asyncio.Event().wait()

    warning = UNENDED.format(line=2).replace("add", "stay")
    code = "const a = 1;\ntools.stay({ a });\nreturn 5"
    started = await sandbox.start(code, tools=[stay], engine=engine)
    events = [event async for event in started]
    result = await started.result()
    assert (result.result, result.warnings) == (5, (warning,))
    assert [(call.tool, call.ok, call.code, call.line) for call in result.calls] == [
        ("stay", False, "cancelled", 2)
    ]
    ended = [event for event in events if isinstance(event, ToolCallEnded)]
    assert [(event.ok, event.code) for event in ended] == [(False, "cancelled")]
    assert warning in text_for_model(result, 1_000)
    awaited = await sandbox.run("return await tools.add({ a: 1, b: 2 })", tools=[add], engine=engine)
    assert (awaited.result, awaited.warnings, len(awaited.calls)) == (3, (), 1)


async def test_warning_counts_the_calls_of_each_tool(run: Run) -> None:
    code = "tools.add({ a: 1, b: 2 });\ntools.echo(1);\ntools.add({ a: 1, b: 2 });\nreturn 1"
    result = await run(code, tools=[add, echo], on_log=print)
    (warning,) = result.warnings
    assert warning.startswith("2 calls of tools.add (lines 1, 3) and 1 call of tools.echo (line 2) had not")
    many = await run("for (let i = 0; i < 9; i++) tools.add({ a: 1, b: 2 });\nreturn", tools=[add])
    assert many.warnings[0].startswith("9 calls of tools.add had not ended")


async def test_result_that_is_not_json_because_of_a_call_without_await_is_explained(run: Run) -> None:
    code = "const sum = tools.add({ a: 1, b: 2 });\nreturn sum * 2"
    result = await run(code, tools=[add], on_log=print)
    assert result.error is not None
    assert "NaN" in result.error.message
    assert result.error.message.endswith(UNENDED.format(line=1))


async def test_error_while_other_calls_run_has_no_warning(run: Run) -> None:
    code = "await Promise.all([tools.fail({}), tools.wait()])"

    async def wait() -> None:
        await asyncio.Event().wait()

    result = await run(code, tools=[fail, wait])
    assert result.error is not None
    assert (result.error.message, result.warnings) == ("it broke", ())
    assert [(call.tool, call.code) for call in result.calls] == [
        ("fail", "tool_error"),
        ("wait", "cancelled"),
    ]


async def test_other_missing_function_is_not_mistaken_for_a_tool(run: Run) -> None:
    result = await run("const other = { tools: {} };\nother.tools.missing(await tools.echo(1))", tools=[echo])
    assert result.error is not None
    assert "tools has" not in result.error.message


DERIVED_ERRORS = {
    "wrapped in a new error": "try { await tools.fail({}) } catch (e) { throw new Error(e.message) }",
    "wrapped as a cause": (
        "try { await tools.fail({}) } catch (e) { throw new Error('it broke', { cause: e }) }"
    ),
    "wrapped with its code": (
        "try { await tools.fail({}) } catch (e) { throw Object.assign(new Error(e.message), { code:"
        " e.code }) }"
    ),
    "a lookalike": "throw { code: 'tool_error', message: 'it broke' }",
    "a lookalike error": "throw Object.assign(new Error('it broke'), { code: 'tool_error' })",
    "a copy": "try { await tools.fail({}) } catch (e) { throw { ...e, code: e.code, message: e.message } }",
    "a proxy": "try { await tools.fail({}) } catch (e) { throw new Proxy(e, {}) }",
    "an object that inherits from it": "try { await tools.fail({}) } catch (e) { throw Object.create(e) }",
}


@pytest.mark.parametrize("code", DERIVED_ERRORS.values(), ids=DERIVED_ERRORS.keys())
async def test_error_derived_from_a_tool_error_is_a_runtime_error(run: Run, code: str) -> None:
    result = await run(code, tools=[fail])
    assert result.error is not None
    assert result.error.code == "runtime_error"


CHANGES = {
    "its code": "e.code = 'timeout'",
    "its message": "e.message = 'all is well'",
    "its name": "e.name = 'Nice'",
    "both by definition": (
        "Object.defineProperty(e, 'code', { get: () => 'memory_limit' });"
        "Object.defineProperty(e, 'message', { get: () => 'no' })"
    ),
    "its prototype": "Object.setPrototypeOf(e, { code: 'timeout', message: 'no' })",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_guest_cannot_change_a_tool_errors_code_or_message(run: Run, change: str) -> None:
    result = await run(f"try {{ await tools.fail({{}}) }} catch (e) {{ {change}; throw e }}", tools=[fail])
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "it broke")


@pytest.mark.parametrize("code", ["timeout", "memory_limit", "internal_error", "validation_error", "made_up"])
async def test_error_code_invented_by_the_guest_is_a_runtime_error(run: Run, code: str) -> None:
    result = await run(f"throw Object.assign(new Error('no'), {{ code: {code!r} }})")
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("runtime_error", "no")


async def test_error_of_a_call_that_is_not_awaited_does_not_end_the_execution(run: Run) -> None:
    code = "tools.fail({});\nawait tools.echo(1);\nreturn 'continued'"
    assert (await run(code, tools=[fail, echo])).result == "continued"


async def test_long_message_is_cut_and_lone_surrogates_are_replaced(run: Run) -> None:
    code = "try { await tools.fail({ message: 'x'.repeat(100000) }) } catch (e) { return e.message.length }"
    assert (await run(code, tools=[fail])).result < 10_000

    async def odd() -> None:
        raise ValueError("a\ud800b")

    result = await run("await tools.odd()", tools=[odd])
    assert result.error is not None
    assert result.error.message == "a\ufffdb"


# --- many calls, slow calls, blocking calls ---


async def test_calls_run_concurrently(run: Run) -> None:
    met = asyncio.Barrier(10)

    async def meet(n: int) -> int:
        async with asyncio.timeout(30):
            await met.wait()
        return n

    code = "await Promise.all([...Array(10).keys()].map((n) => tools.meet({ n })))"
    assert (await run(code, tools=[meet])).result == list(range(10))


async def test_five_thousand_concurrent_calls_succeed(run: Run) -> None:
    async def twice(n: int) -> int:
        return 2 * n

    code = """
        const all = await Promise.all([...Array(5000).keys()].map((n) => tools.twice({ n })));
        return all.every((value, n) => value === 2 * n) && all.length;
    """
    assert (await run(code, tools=[twice], timeout_ms=30_000)).result == 5000


async def test_blocking_tool_blocks_neither_the_event_loop_nor_other_calls(run: Run) -> None:
    released = threading.Event()

    def block() -> str:
        assert released.wait(30)
        return "released"

    async def release() -> None:
        # This async tool runs in the event loop. The event loop is free, because `block` runs in another
        # thread.
        released.set()

    code = "const blocked = tools.block();\nawait tools.release();\nreturn await blocked"
    assert (await run(code, tools=[block, release], timeout_ms=30_000)).result == "released"


async def test_blocking_tool_does_not_run_in_the_event_loops_thread(run: Run) -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await run("await tools.where()", tools=[where])).result is False


async def test_results_are_matched_to_their_calls_in_any_order(run: Run) -> None:
    waiting: list[asyncio.Event] = [asyncio.Event() for _ in range(4)]
    waiting[3].set()

    async def turn(n: int) -> str:
        await waiting[n].wait()
        if n:
            waiting[n - 1].set()
        return f"turn {n}"

    code = """
        const order = [];
        const note = async (n) => { const r = await tools.turn({ n }); order.push(n); return r };
        return [await Promise.all([0, 1, 2, 3].map(note)), order];
    """
    result = await run(code, tools=[turn])
    assert result.result == [["turn 0", "turn 1", "turn 2", "turn 3"], [3, 2, 1, 0]]


# --- context ---


async def test_tool_with_a_context_parameter_gets_its_context(run: Run) -> None:
    seen: list[ToolContext] = []

    async def look(context: ToolContext, n: int) -> int:
        seen.append(context)
        return n

    named = tool(look, name="look at")
    before = asyncio.get_running_loop().time()
    result = await run("await things.look_at({ n: 3 })", tools={"things": [named]}, timeout_ms=20_000)
    after = asyncio.get_running_loop().time()
    assert result.result == 3
    [context] = seen
    assert (context.run_id, context.provider, context.tool) == (result.run_id, "things", "look at")
    assert before + 20 <= context.deadline <= after + 20
    # The event is set, because the execution has ended and Hutch would discard the tool's result.
    assert context.cancelled.is_set()


async def test_cancelling_sets_the_contexts_event(run: Run) -> None:
    waiting = anyio.Event()
    seen: list[ToolContext] = []

    async def hang(context: ToolContext) -> None:
        seen.append(context)
        waiting.set()
        await anyio.sleep_forever()

    task = asyncio.create_task(run("await tools.hang()", tools=[hang]))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await waiting.wait()
    assert not seen[0].cancelled.is_set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].cancelled.is_set()


async def test_blocking_tool_sees_the_timeout_in_its_context(run: Run) -> None:
    saw_cancellation = threading.Event()

    def wait(context: ToolContext) -> None:
        deadline = time.monotonic() + 30
        while not context.cancelled.is_set() and time.monotonic() < deadline:
            time.sleep(0.005)
        saw_cancellation.set()

    result = await run("await tools.wait()", tools=[wait], timeout_ms=700)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert await asyncio.to_thread(saw_cancellation.wait, 30)
