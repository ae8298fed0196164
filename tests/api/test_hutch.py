"""Python API: running, lifecycle, event loops, settings, and errors of wrong use."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import TIMEOUT_SECONDS

import hutch
from hutch.app.app import App
from hutch.errors import InvalidExecution, SandboxUnavailable, SettingError
from hutch.sandbox.runner.launcher import Launcher
from hutch.settings import Settings


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


# --- running ---


async def test_example_of_the_documentation_works(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("return (await tools.add({a: 1, b: 2})) * 2", tools=[add])
    assert (r.ok, r.result, r.error, r.logs) == (True, 6, None, [])
    assert r.duration_ms > 0


async def test_failure_of_the_guest_is_a_result(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("console.log('before');\nthrow new TypeError('no')")
    assert (r.ok, r.result, r.logs) == (False, None, ["before"])
    assert r.error is not None
    assert (r.error.code, r.error.message, r.error.name, r.error.line) == (
        "runtime_error",
        "no",
        "TypeError",
        2,
    )


async def test_error_of_a_result_is_an_exception(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("const a = 1;\nthrow new TypeError('no')")
    assert r.error is not None
    with pytest.raises(hutch.ExecutionError) as raised:
        raise r.error
    assert (raised.value.code, raised.value.message) == ("runtime_error", "no")
    assert re.fullmatch(r"TypeError: no \(line 2, column \d+\)", str(raised.value))
    with pytest.raises(hutch.HutchError) as raised_by_method:
        r.raise_for_error()
    assert raised_by_method.value is r.error
    assert (await sandbox.run("1 + 1")).raise_for_error().result == 2


async def test_errors_of_two_results_are_different_objects(sandbox: hutch.Hutch) -> None:
    first, second = [await sandbox.run("for (;;);", timeout_ms=1) for _ in range(2)]
    assert first.error is not second.error
    assert str(first.error).startswith("Execution timed out after 1 ms")


async def test_failed_result_can_be_pickled(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("throw new RangeError('no')")
    error = pickle.loads(pickle.dumps(r)).error  # noqa: S301 - our own data
    assert (str(error), error.code, error.line, error.stack) == (
        str(r.error),
        "runtime_error",
        1,
        r.stack,
    )


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_result_has_the_stack_of_the_guest(sandbox: hutch.Hutch, engine: str) -> None:
    code = "function inner() {\n  throw new Error('no')\n}\nfunction outer() {\n  inner()\n}\nouter()"
    r = await sandbox.run(code, engine=engine)
    assert r.stack is not None
    assert [frame.rpartition(",")[0] for frame in r.stack.split("\n")] == [
        "at inner (line 2",
        "at outer (line 5",
        "at line 7",
    ]
    assert r.error is not None
    assert r.stack in r.error.__notes__[0]
    assert (await sandbox.run("1", engine=engine)).stack is None


async def test_stack_has_at_most_20_frames(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("const f = (n) => { if (n === 0) throw new Error('no'); f(n - 1) }; f(100)")
    assert r.stack is not None
    assert len(r.stack.split("\n")) <= 20


async def test_result_has_the_tool_calls(sandbox: hutch.Hutch) -> None:
    def fail() -> None:
        raise hutch.ToolError("no")

    code = "await tools.add({a: 1, b: 2}); try { await tools.fail() } catch {}"
    r = await sandbox.run(code, tools=[add, fail])
    assert [(call.provider, call.tool, call.ok) for call in r.calls] == [
        ("tools", "add", True),
        ("tools", "fail", False),
    ]
    assert all(call.duration_ms >= 0 for call in r.calls)
    assert list((await sandbox.run("1")).calls) == []


async def test_tool_calls_of_a_result_are_bounded(sandbox: hutch.Hutch) -> None:
    code = "for (let i = 0; i < 300; i++) await tools.add({a: 1, b: 2})"
    assert len((await sandbox.run(code, tools=[add])).calls) == 200


# --- inputs ---


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("return [rows.length, name, __proto__]", [2, "é\u2028\ud800", 1]),
        ("async () => rows[1].id", 2),
        ("const rows: number[] = [7]; rows", [7]),
        ("```js\nname.length\n```", 3),
    ],
)
async def test_inputs_are_variables_of_the_guest(
    sandbox: hutch.Hutch, engine: str, code: str, result: Any
) -> None:
    inputs = {"rows": [{"id": 1}, {"id": 2}], "name": "é\u2028\ud800", "__proto__": 1}
    r = await sandbox.run(code, inputs=inputs, engine=engine)
    assert r.raise_for_error().result == result


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_inputs_do_not_change_positions(sandbox: hutch.Hutch, engine: str) -> None:
    plain = await sandbox.run("undefined.x", engine=engine)
    with_inputs = await sandbox.run("undefined.x", inputs={"a": "b" * 1000}, engine=engine)
    assert plain.error is not None
    assert with_inputs.error is not None
    assert (with_inputs.error.line, with_inputs.error.column) == (plain.error.line, plain.error.column)


async def test_inputs_of_one_execution_are_not_visible_to_the_next(sandbox: hutch.Hutch) -> None:
    assert (await sandbox.run("typeof secret", inputs={"secret": 1})).result == "number"
    assert (await sandbox.run("typeof secret")).result == "undefined"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a-b": 1}, "inputs: expected names that are JavaScript identifiers, got 'a-b'"),
        ({"await": 1}, "got 'await'"),
        ({1: 2}, "got 1"),
        ({"tools": 1}, "inputs: 'tools' is the name of a provider"),
        ({"a": [float("nan")]}, r"inputs: expected JSON-safe values: .*a\[0\]"),
        ({"a": object()}, "inputs: expected JSON-safe values"),
        ([1], "inputs: expected names with values, got list"),
        ({"a": "x" * 9_000_000}, r"inputs: have 9000008 bytes of JSON; the limit is 8388608"),
    ],
)
async def test_invalid_inputs_are_refused(sandbox: hutch.Hutch, inputs: Any, message: str) -> None:
    with pytest.raises(InvalidExecution, match=message):
        await sandbox.run("1", inputs=inputs, tools=[add])


def test_run_sync_accepts_inputs() -> None:
    assert hutch.run_sync("n + 1", inputs={"n": 1}).result == 2


async def test_inputs_count_for_the_memory_limit(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("1", inputs={"a": "x" * 4_000_000}, memory_limit_bytes=2_000_000)
    assert r.error is not None
    assert r.error.code == "memory_limit"


# --- logs ---


async def test_run_is_logged_with_its_outcome(sandbox: hutch.Hutch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hutch.runs")
    r = await sandbox.run("await tools.add({a: 1, b: 2}); throw new Error('secret')", tools=[add])
    await asyncio.sleep(0)  # the log line is written after the caller has the result
    [message] = [record.getMessage() for record in caplog.records if record.name == "hutch.runs"]
    pattern = rf"run {r.run_id}: runtime_error after [\d.]+ ms \(quickjs, 1 tool call\)"
    assert re.fullmatch(pattern, message)


@pytest.mark.parametrize(("engine", "has_locales"), [("quickjs", False), ("deno", True)])
async def test_guest_can_see_whether_there_are_locales(
    sandbox: hutch.Hutch, engine: Any, has_locales: bool
) -> None:
    code = "[typeof Intl === 'object', (1234.5).toLocaleString('de') === '1.234,5']"
    assert (await sandbox.run(code, engine=engine)).result == [has_locales, has_locales]


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_log_lines_come_while_the_guest_runs(sandbox: hutch.Hutch, engine: str) -> None:
    lines: list[str] = []
    arrived = asyncio.Event()

    def on_log(line: str) -> None:
        lines.append(line)
        arrived.set()

    async def wait_for_line() -> list[str]:
        await asyncio.wait_for(arrived.wait(), TIMEOUT_SECONDS)
        return lines

    code = "console.log('é', {a: 1}); const seen = await tools.wait_for_line(); console.log('end'); seen"
    r = await sandbox.run(code, tools=[wait_for_line], on_log=on_log, engine=engine)
    assert r.raise_for_error().result == ['é {"a":1}']
    assert lines == r.logs == ['é {"a":1}', "end"]


async def test_async_log_callback_gets_the_lines_in_order(sandbox: hutch.Hutch) -> None:
    lines: list[str] = []

    async def on_log(line: str) -> None:
        await asyncio.sleep(0)
        lines.append(line)

    r = await sandbox.run("for (let i = 0; i < 500; i++) console.log(i)", on_log=on_log)
    assert lines == r.logs == [str(i) for i in range(100)]


async def test_error_in_the_log_callback_stops_the_guest(sandbox: hutch.Hutch) -> None:
    def on_log(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="first"):
        await sandbox.run("console.log('first'); await new Promise(() => {})", on_log=on_log)


async def test_tools_are_accepted_in_all_forms(sandbox: hutch.Hutch) -> None:
    provider = hutch.Provider.of(add, name="maths")
    for tools, call in (
        ([add], "tools.add"),
        ((hutch.tool(add, name="plus"),), "tools.plus"),
        (provider, "maths.add"),
        ([provider, add], "maths.add"),
        ({"numbers": [add]}, "numbers.add"),
    ):
        r = await sandbox.run(f"await {call}({{a: 1, b: 2}})", tools=tools)
        assert r.result == 3, call


async def test_limits_apply_to_the_call(sandbox: hutch.Hutch) -> None:
    r = await sandbox.run("console.log('123456'); console.log('x')", max_log_lines=1, max_log_chars=3)
    assert (r.logs, r.logs_truncated) == (["123"], True)
    late = await sandbox.run("for (;;);", timeout_ms=50)
    assert late.error is not None
    assert late.error.code == "timeout"
    big = await sandbox.run(
        "const a = []; for (;;) a.push(new Array(1000).fill(1))", memory_limit_bytes=2**23
    )
    assert big.error is not None
    assert big.error.code == "memory_limit"


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"engine": "v8"}, "engine", "unknown engine 'v8'; expected one of quickjs, deno"),
        ({"timeout_ms": 0}, "timeout_ms", "expected a number of at least 1, got 0"),
        ({"timeout_ms": -5}, "timeout_ms", "expected a number of at least 1, got -5"),
        ({"timeout_ms": float("nan")}, "timeout_ms", "expected a number of at least 1, got nan"),
        ({"timeout_ms": "5"}, "timeout_ms", "expected a number of at least 1, got '5'"),
        ({"timeout_ms": True}, "timeout_ms", "expected a number of at least 1, got True"),
        ({"timeout_ms": 300_001}, "timeout_ms", "is 300001; the maximum is 300000 (setting max_timeout_ms)"),
        ({"timeout_ms": 1e9}, "timeout_ms", "is 1000000000; the maximum is 300000"),
        ({"timeout_ms": 300_000.5}, "timeout_ms", "is 300000.5; the maximum is 300000"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes", "expected a number of at least 1, got 0"),
        ({"max_log_lines": -1}, "max_log_lines", "expected a number of at least 0, got -1"),
        (
            {"max_log_chars": 4_000_001},
            "max_log_chars",
            "the maximum is 4000000 (setting max_log_chars_ceiling)",
        ),
    ],
)
async def test_option_out_of_range_is_reported(
    sandbox: hutch.Hutch, options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidExecution) as refused:
        await sandbox.run("1", **options)
    assert refused.value.field == field
    assert message in str(refused.value)


async def test_invalid_namespaces_are_refused(sandbox: hutch.Hutch) -> None:
    with pytest.raises(hutch.HutchError, match="Invalid provider namespace: no-name"):
        await sandbox.run("1", tools={"no-name": [add]})
    with pytest.raises(hutch.HutchError, match="Two providers are called tools"):
        await sandbox.run("1", tools=[add, hutch.Provider.of(add)])


async def test_names_of_functions_are_refused_as_tools(sandbox: hutch.Hutch) -> None:
    with pytest.raises(hutch.HutchError, match=r"'add' cannot be a tool\. Pass functions"):
        await sandbox.run("1", tools="add")


async def test_code_that_is_too_long_is_refused() -> None:
    async with hutch.Hutch(max_code_bytes=10) as h:
        with pytest.raises(InvalidExecution, match="code: has 11 bytes; the limit is 10"):
            await h.run("'123456789'")


async def test_cancelling_the_call_stops_the_guest_and_its_tools(sandbox: hutch.Hutch) -> None:
    called, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.create_task(sandbox.run("for (;;) { try { await tools.wait() } catch {} }", tools=[wait]))
    await called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cancelled.wait()
    assert (await sandbox.run("1")).result == 1


async def test_cancelled_run_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hutch.runs")
    called = asyncio.Event()

    async def wait() -> None:
        called.set()
        await asyncio.Event().wait()

    async with hutch.Hutch() as h:
        task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], owner="other"))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    [fields] = [vars(record)["fields"] for record in caplog.records if record.name == "hutch.runs"]
    assert (fields["owner"], fields["protocol"], fields["outcome"]) == ("other", "python", "cancelled")


# --- settings ---


def test_settings_are_keyword_arguments() -> None:
    assert hutch.Hutch(timeout_ms=7).settings.timeout_ms == 7
    assert hutch.Hutch(settings=Settings(timeout_ms=8)).settings.timeout_ms == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 5}, "timeout: there is no such setting. Did you mean timeout_ms?"),
        ({"timeout_ms": "soon"}, "timeout_ms: expected an integer of at least 1, got 'soon'."),
        (
            {"settings": Settings(), "port": 1},
            "port: expected either `settings` or single settings, got both.",
        ),
        (
            {"runner": "hutch runner"},
            "runner: expected a list such as ['hutch', 'runner'], got 'hutch runner'.",
        ),
        ({"runner": []}, "runner: expected a list such as ['hutch', 'runner'], got []."),
    ],
)
def test_wrong_keyword_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        hutch.Hutch(**arguments)
    assert str(refused.value).startswith(message)


def test_settings_are_read_from_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hutch.toml").write_text("timeout_ms = 1\nmax_calls = 1\n")
    monkeypatch.setenv("HUTCH_HOME", str(tmp_path))
    monkeypatch.setenv("HUTCH_TIMEOUT_MS", "2")
    settings = hutch.Hutch().settings
    assert (settings.timeout_ms, settings.max_calls) == (2, 1)


def test_settings_are_not_read_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hutch.toml").write_text('timeout_ms = 1\nisolation = "process"\n')
    monkeypatch.chdir(tmp_path)
    settings = hutch.Hutch().settings
    assert (settings.timeout_ms, settings.isolation) == (5_000, "auto")


# --- errors and warnings ---


async def test_single_function_or_tool_is_accepted(sandbox: hutch.Hutch) -> None:
    for tools in (add, hutch.tool(add), {"tools": add}):
        assert (await sandbox.run("await tools.add({a: 1, b: 2})", tools=tools)).result == 3


@pytest.mark.parametrize("code", [None, b"code", 7])
async def test_code_that_is_not_a_string_is_refused(sandbox: hutch.Hutch, code: Any) -> None:
    with pytest.raises(hutch.InvalidExecution, match=r"^code: expected a str, got "):
        await sandbox.run(code)
    with pytest.raises(hutch.InvalidExecution, match=r"^code: expected a str, got "):
        await hutch.connect("ws://127.0.0.1:1").run(code)


async def test_weak_isolation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with hutch.Hutch(isolation="process"):
        pass
    [record] = [each for each in caplog.records if each.name == "hutch"]
    assert record.levelname == "WARNING"
    assert "the isolation is weak (process)" in record.getMessage()


async def test_self_test_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from hutch.sandbox.selftest import selftest

    real, asked, answered = selftest.choose_jail, threading.Event(), threading.Event()

    def choose(settings: Settings) -> Any:
        asked.set()
        assert answered.wait(TIMEOUT_SECONDS)
        return real(settings)

    monkeypatch.setattr(selftest, "choose_jail", choose)
    async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
        h = hutch.Hutch()
        runs = [group.create_task(h.run("1")) for _ in range(3)]
        await asyncio.to_thread(asked.wait)
        answered.set()
        assert [(await each).result for each in runs] == [1, 1, 1]
        await h.close()


async def test_warm_up_raises_the_reason_why_no_runner_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def launch(*_: object, **__: object) -> Any:
        raise SandboxUnavailable("no more processes")

    monkeypatch.setattr(Launcher, "launch", launch)
    app = await App.create(Settings())
    try:
        with pytest.raises(SandboxUnavailable, match="no more processes"):
            await app.warm_up()
    finally:
        await app.close()
