"""Hutch from Python: its life, its loop, and what is said of wrong use."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE, temporary_files

import hutch
from hutch.app import App
from hutch.errors import InvalidExecution, SandboxUnavailable, SettingError
from hutch.sandbox.launcher import Launcher
from hutch.settings import Settings


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **env},
        check=False,
    )


# --- running ---


async def test_example_of_the_documentation(sandbox: hutch.Hutch) -> None:
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


async def test_tools_may_be_given_in_every_convenient_form(sandbox: hutch.Hutch) -> None:
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


async def test_limits_are_of_the_call(sandbox: hutch.Hutch) -> None:
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
        ({"timeout_ms": 300_001}, "timeout_ms", "is 300001; the most is 300000 (setting most_timeout_ms)"),
        ({"timeout_ms": 1e9}, "timeout_ms", "is 1000000000; the most is 300000"),
        ({"timeout_ms": 300_000.5}, "timeout_ms", "is 300000.5; the most is 300000"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes", "expected a number of at least 1, got 0"),
        ({"max_log_lines": -1}, "max_log_lines", "expected a number of at least 0, got -1"),
        ({"max_log_chars": 4_000_001}, "max_log_chars", "the most is 4000000 (setting most_log_chars)"),
    ],
)
async def test_option_out_of_range_is_named(
    sandbox: hutch.Hutch, options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidExecution) as refused:
        await sandbox.run("1", **options)
    assert refused.value.field == field
    assert message in str(refused.value)


async def test_namespaces_that_cannot_be_are_refused(sandbox: hutch.Hutch) -> None:
    with pytest.raises(hutch.HutchError, match="Invalid provider namespace: no-name"):
        await sandbox.run("1", tools={"no-name": [add]})
    with pytest.raises(hutch.HutchError, match="Two providers are called tools"):
        await sandbox.run("1", tools=[add, hutch.Provider.of(add)])


async def test_names_of_functions_are_no_tools(sandbox: hutch.Hutch) -> None:
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
        task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], owner="somebody"))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    [fields] = [vars(record)["fields"] for record in caplog.records if record.name == "hutch.runs"]
    assert (fields["owner"], fields["door"], fields["outcome"]) == ("somebody", "python", "timeout")


# --- its life ---


async def test_it_can_be_used_without_async_with() -> None:
    h = hutch.Hutch()
    assert (await h.run("1 + 1")).result == 2
    await h.close()
    await h.close()


async def test_two_at_once_do_not_disturb_each_other() -> None:
    async with hutch.Hutch() as one, hutch.Hutch(max_log_lines=1) as other:
        results = await asyncio.gather(
            *(h.run("console.log(1); console.log(2)") for h in (one, other, one, other))
        )
        assert [len(each.logs) for each in results] == [2, 1, 2, 1]
        await one.close()
        assert (await other.run("1")).result == 1


async def test_closed_one_says_so() -> None:
    async with hutch.Hutch() as h:
        pass
    with pytest.raises(hutch.HutchError, match="This Hutch was closed"):
        await h.run("1")
    with pytest.raises(hutch.HutchError, match="This Hutch was closed"):
        await h.start()


def test_closing_leaves_no_process_and_no_file() -> None:
    code = """
import asyncio, hutch, os
from tests.processes import descendants, temporary_files

async def main():
    async with hutch.Hutch() as h:
        await asyncio.gather(h.run("1"), h.run("1", engine="deno"))
        assert descendants(os.getpid()) and temporary_files(os.getpid())
    assert (descendants(os.getpid()), temporary_files(os.getpid())) == ([], [])

asyncio.run(main())
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")


async def test_one_of_another_loop_says_so() -> None:
    async with hutch.Hutch() as h:
        assert (await h.run("1")).result == 1

        def elsewhere() -> None:
            asyncio.run(h.run("1"))  # type: ignore[arg-type]

        with pytest.raises(hutch.HutchError, match="belongs to another event loop"):
            await asyncio.to_thread(elsewhere)


def test_program_that_never_closes_it_leaves_nothing_behind() -> None:
    code = "import asyncio, hutch, os; asyncio.run(hutch.Hutch().run('1')); print(os.getpid())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    assert temporary_files(int(done.stdout)) == []


# --- what it is made of ---


def test_settings_are_keywords() -> None:
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


def test_settings_of_the_environment_and_the_file_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hutch.toml").write_text("timeout_ms = 1\nmax_calls = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUTCH_TIMEOUT_MS", "2")
    settings = hutch.Hutch().settings
    assert (settings.timeout_ms, settings.max_calls) == (2, 1)


# --- without a loop ---


def test_run_sync_works_in_any_thread_and_stays_warm() -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(hutch.run_sync("6 * 7", tools=[add]).result))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == [42] * 4
    assert hutch.run_sync("await tools.add({a: 1, b: 2})", tools=[add]).result == 3


def test_run_sync_tells_wrong_options() -> None:
    with pytest.raises(InvalidExecution, match="unknown engine 'v8'"):
        hutch.run_sync("1", engine="v8")
    with pytest.raises(TypeError, match="nonsense"):
        hutch.run_sync("1", nonsense=1)


def test_run_sync_in_an_async_tool_does_not_wait_for_itself() -> None:
    async def again() -> Any:
        return hutch.run_sync("1").result

    r = hutch.run_sync("await tools.again()", tools=[again])
    assert r.error is not None
    assert "run_sync() would wait for itself" in r.error.message


def test_run_sync_in_a_plain_tool_works() -> None:
    def again() -> int:
        return int(hutch.run_sync("20 + 1").result)

    assert hutch.run_sync("2 * await tools.again()", tools=[again]).result == 42


def test_run_sync_leaves_nothing_behind_and_says_nothing() -> None:
    done = python("import hutch, os; print(os.getpid(), hutch.run_sync('1 + 1').result)")
    assert (done.returncode, done.stderr) == (0, "")
    pid, result = done.stdout.split()
    assert result == "2"
    assert temporary_files(int(pid)) == []


def test_run_sync_works_after_a_fork() -> None:
    code = """
import hutch, os
assert hutch.run_sync("1").result == 1
child = os.fork()
if child == 0:
    ok = hutch.run_sync("2").result == 2
    raise SystemExit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert hutch.run_sync("3").result == 3
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_settings_are_told_by_every_call_of_run_sync() -> None:
    code = """
import hutch, threading
for _ in range(2):
    try:
        hutch.run_sync("1")
    except hutch.HutchError as error:
        print(error)
print(threading.active_count())
"""
    done = python(code, HUTCH_PORT="x")
    assert done.stdout == "HUTCH_PORT: expected an integer from 0 to 65535, got 'x'.\n" * 2 + "1\n"


# --- what is said ---


async def test_lone_function_or_tool_is_a_list_of_one(sandbox: hutch.Hutch) -> None:
    for tools in (add, hutch.tool(add), {"tools": add}):
        assert (await sandbox.run("await tools.add({a: 1, b: 2})", tools=tools)).result == 3


@pytest.mark.parametrize("code", [None, b"code", 7])
async def test_code_that_is_no_text_is_refused(sandbox: hutch.Hutch, code: Any) -> None:
    with pytest.raises(hutch.InvalidExecution, match=r"^code: expected a str, got "):
        await sandbox.run(code)
    with pytest.raises(hutch.InvalidExecution, match=r"^code: expected a str, got "):
        await hutch.connect("ws://127.0.0.1:1").run(code)


async def test_weak_isolation_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with hutch.Hutch(isolation="process"):
        pass
    [record] = [each for each in caplog.records if each.name == "hutch"]
    assert record.levelname == "WARNING"
    assert "the isolation is weak (process)" in record.getMessage()


async def test_self_test_does_not_hold_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from hutch.sandbox import selftest

    real, asked, answered = selftest.choose, threading.Event(), threading.Event()

    def choose(settings: Settings) -> Any:
        asked.set()
        assert answered.wait(PATIENCE)
        return real(settings)

    monkeypatch.setattr(selftest, "choose", choose)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        h = hutch.Hutch()
        runs = [group.create_task(h.run("1")) for _ in range(3)]
        await asyncio.to_thread(asked.wait)
        answered.set()
        assert [(await each).result for each in runs] == [1, 1, 1]
        await h.close()


async def test_warm_up_tells_why_no_runner_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def launch(*_: object) -> Any:
        raise SandboxUnavailable("no more processes")

    monkeypatch.setattr(Launcher, "launch", launch)
    app = await App.create(Settings())
    try:
        with pytest.raises(SandboxUnavailable, match="no more processes"):
            await app.warm_up()
    finally:
        await app.close()
