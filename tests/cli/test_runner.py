"""Tests of `hutch runner`, driven by hand-written messages and by Hutch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import processes
from tests.support.messages import MALFORMED, execute, tool_failure, tool_result
from tests.support.processes import (
    HUTCH,
    TIMEOUT_SECONDS,
    Traces,
    arguments_of,
    descendants,
    stop_process,
    wait_until,
)

import hutch

COMMAND = [*HUTCH, "runner"]
# The specification allows one second until the exit. The limit here is higher, because the machine may be
# busy.
EXIT_SECONDS = 3.0


class Runner:
    """Host side of a runner, one line at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, *messages: dict[str, Any] | str) -> None:
        assert self.process.stdin is not None
        for each in messages:
            line = each if isinstance(each, str) else json.dumps(each)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def done(self, id: str) -> dict[str, Any]:
        """Receives `started` and `done` of an execution, and returns `done`."""
        assert self.receive() == {"type": "started", "id": id}
        message = self.receive()
        assert (message["type"], message["id"]) == ("done", id)
        return message

    def close(self) -> bytes:
        """Closes stdin and returns the rest of stdout."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return self.process.stdout.read()


@contextlib.contextmanager
def running_runner(*arguments: str) -> Iterator[Runner]:
    # On a busy machine a runner needs more than the default 25 ms to send the logs of a cancelled execution.
    with processes.start_hutch(["runner", *arguments], env={"HUTCH_CANCEL_GRACE_MS": "10000"}) as process:
        try:
            yield Runner(process)
        finally:
            stop_process(process)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """One runner for many tests. A runner can be used again after every `done`."""
    with running_runner() as one:
        yield one
        assert one.close() == b""
        assert one.process.wait(EXIT_SECONDS) == 0
        assert one.process.stderr is not None
        lines = one.process.stderr.read().splitlines()
        assert [line for line in lines if not line.startswith(b"hutch: dropped an invalid message")] == []


def test_transcript_of_the_specification(runner: Runner) -> None:
    runner.send(execute("exec-1", 'await tools.echo({"ok":true})', tools=("echo",)))
    assert runner.receive() == {"type": "started", "id": "exec-1"}
    call = runner.receive()
    call_id = call.pop("callId")
    assert call == {
        "type": "tool_call",
        "providerName": "tools",
        "safeToolName": "echo",
        "input": {"ok": True},
    }
    runner.send({"type": "tool_result", "callId": call_id, "ok": True, "result": {"ok": True}})
    done = runner.receive()
    assert done.pop("durationMs") > 0
    assert done == {"type": "done", "id": "exec-1", "ok": True, "logs": [], "result": {"ok": True}}


def test_runner_takes_another_execution_after_done(runner: Runner) -> None:
    for number in range(3):
        runner.send(
            execute(f"again-{number}", f"console.log('n'); globalThis.n = (globalThis.n ?? 0) + {number}")
        )
        done = runner.done(f"again-{number}")
        assert (done["result"], done["logs"]) == (number, ["n"])


def test_same_id_can_be_used_again(runner: Runner) -> None:
    for _ in range(2):
        runner.send(execute("same", "1"))
        assert runner.done("same")["result"] == 1


def test_second_execution_is_rejected_while_the_first_runs(runner: Runner) -> None:
    runner.send(execute("first", "await tools.wait()", tools=("wait",)))
    assert runner.receive()["type"] == "started"
    call = runner.receive()
    runner.send(execute("second", "2"))
    refused = runner.receive()
    assert (refused["id"], refused["ok"], refused["durationMs"], refused["logs"]) == ("second", False, 0, [])
    assert refused["error"]["code"] == "internal_error"
    runner.send(tool_result(call, "went on"))
    assert runner.receive()["result"] == "went on"


def test_malformed_lines_are_ignored(runner: Runner) -> None:
    runner.send(*MALFORMED)
    runner.send(execute("well", "'formed'"))
    assert runner.done("well")["result"] == "formed"


def test_error_of_the_guest_has_its_line(runner: Runner) -> None:
    runner.send(execute("wrong", "1;\nthrow new TypeError('no')"))
    error = runner.done("wrong")["error"]
    assert (error["code"], error["message"], error["line"]) == ("runtime_error", "no", 2)


def test_error_of_a_tool_keeps_its_code(runner: Runner) -> None:
    runner.send(execute("tool", "await tools.fail({})", tools=("fail",)))
    assert runner.receive()["type"] == "started"
    runner.send(tool_failure(runner.receive(), "validation_error", "not so"))
    assert runner.receive()["error"] == {
        "code": "validation_error",
        "message": "not so",
        "line": 1,
        "column": 12,
        "stack": "at line 1, column 12",
    }


def test_error_of_a_tool_can_be_caught(runner: Runner) -> None:
    code = "try { await tools.fail({}) } catch (e) { return [e.code, e.message] }"
    runner.send(execute("caught", code, tools=("fail",)))
    assert runner.receive()["type"] == "started"
    runner.send(tool_failure(runner.receive(), "tool_error", "broken"))
    assert runner.receive()["result"] == ["tool_error", "broken"]


def test_late_tool_result_is_ignored(runner: Runner) -> None:
    runner.send(execute("late", "await tools.slow({})", tools=("slow",), timeoutMs=200))
    assert runner.receive()["type"] == "started"
    call = runner.receive()
    assert runner.receive()["error"]["code"] == "timeout"
    runner.send(tool_result(call, "too late"), execute("after", "3"))
    assert runner.done("after")["result"] == 3


@pytest.mark.parametrize(
    "code",
    [
        "console.log('here'); await tools.go(); for (;;);",
        "console.log('here'); await tools.go(); await new Promise(() => {})",
        "console.log('here'); tools.go(); for (;;) { try { await tools.wait() } catch {} }",
    ],
)
def test_cancel_ends_promptly_and_keeps_the_logs(runner: Runner, code: str) -> None:
    runner.send(execute("stop", code, tools=("go", "wait")))
    assert runner.receive() == {"type": "started", "id": "stop"}
    runner.send(tool_result(runner.receive(), 1))
    if "tools.wait" in code:
        assert runner.receive()["safeToolName"] == "wait"
    runner.send({"type": "cancel", "id": "stop"})
    done = runner.receive()
    assert (done["id"], done["ok"]) == ("stop", False)
    assert done["error"] == {"code": "timeout", "message": "Execution timed out"}
    assert done["logs"] == ["here"]
    assert 0 < done["durationMs"] < 20_000


def test_cancel_of_another_id_changes_nothing(runner: Runner) -> None:
    runner.send(execute("mine", "await tools.wait()", tools=("wait",)))
    assert runner.receive()["type"] == "started"
    call = runner.receive()
    runner.send({"type": "cancel", "id": "yours"}, tool_result(call, 1))
    assert runner.receive()["result"] == 1


def test_timeout_of_the_execution_applies(runner: Runner) -> None:
    runner.send(execute("slow", "for (;;);", timeoutMs=100))
    done = runner.done("slow")
    assert done["error"]["code"] == "timeout"
    assert done["error"]["message"] == "Execution timed out after 100 ms, near line 1"
    assert done["durationMs"] >= 100


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (execute("bad", "1", timeoutMs=0), "options.timeoutMs: expected a number of at least 1, got 0"),
        (execute("bad", "1", engine="v8"), "unknown engine 'v8'; expected one of quickjs, deno"),
        (execute("bad", "1", tools=("a",), namespace="no-name"), "Invalid provider namespace: no-name"),
        (execute("bad", "1" * 4_194_305), "code: has 4194307 bytes of JSON; the limit is 4194304"),
    ],
)
def test_invalid_execution_is_rejected_with_the_reason(
    runner: Runner, message: dict[str, Any], expected: str
) -> None:
    runner.send(message)
    done = runner.receive()
    assert (done["type"], done["id"], done["ok"], done["durationMs"]) == ("done", "bad", False, 0)
    assert done["error"]["code"] == "validation_error"
    assert expected in done["error"]["message"]


def test_unusual_unicode_is_preserved(runner: Runner) -> None:
    runner.send(execute("text", "'\u2028\\ud800 é \\0'"))
    assert runner.done("text")["result"] == "\u2028\ud800 é \0"


def test_deno_engine_runs_several_executions_in_turn() -> None:
    with running_runner("--engine", "deno") as runner:
        for number in range(2):
            id = f"deno-{number}"
            runner.send(execute(id, "[typeof Deno, await tools.echo({}) as string]", tools=("echo",)))
            assert runner.receive() == {"type": "started", "id": id}
            runner.send(tool_result(runner.receive(), number))
            assert runner.receive()["result"] == ["object", number]


def test_unknown_engine_is_rejected_before_stdin_is_read() -> None:
    with running_runner("--engine", "v8") as runner:
        assert runner.close() == b""
        assert runner.process.wait(TIMEOUT_SECONDS) == 2
        assert runner.process.stderr is not None
        assert b"unknown engine 'v8'; expected one of quickjs, deno" in runner.process.stderr.read()


def test_weak_isolation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_ISOLATION", "process")
    with running_runner() as runner:
        assert runner.close() == b""
        assert runner.process.stderr is not None
        assert runner.process.stderr.read().startswith(b"hutch: the isolation is weak (process)")


# --- shutdown ---


@pytest.mark.parametrize("code", ["for (;;);", "await new Promise(() => {})"])
def test_runner_ends_soon_after_stdin_with_an_execution_in_flight(code: str) -> None:
    with running_runner() as runner:
        runner.send(execute("long", code))
        assert runner.receive()["type"] == "started"
        with Traces(runner.process.pid) as traces:
            assert traces.processes > 0
            began = time.monotonic()
            last = [json.loads(line) for line in runner.close().splitlines()]
            assert runner.process.wait(TIMEOUT_SECONDS) == 0
            assert time.monotonic() - began < EXIT_SECONDS
            assert [each["error"]["code"] for each in last] == ["timeout"]
            assert traces.remaining() == []


def test_execution_may_finish_shortly_after_the_end_of_stdin() -> None:
    with running_runner() as runner:
        runner.send(execute("short", "await new Promise((r) => setTimeout(r, 50)); 'finished'"))
        assert [json.loads(line) for line in runner.close().splitlines()][-1]["result"] == "finished"


def test_runner_works_on_files(tmp_path: Path) -> None:
    transcript, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    # The last line of a file may have no line break.
    transcript.write_text("garbage\n" + json.dumps(execute("file", "6 * 7")))
    with transcript.open() as stdin, out.open("w") as stdout:
        subprocess.run(COMMAND, stdin=stdin, stdout=stdout, timeout=TIMEOUT_SECONDS, check=True)
    messages = [json.loads(line) for line in out.read_text().splitlines()]
    assert [message["type"] for message in messages] == ["started", "done"]
    assert messages[-1]["result"] == 42


def test_runner_works_on_a_socket() -> None:
    our_end, their_end = socket.socketpair()
    with our_end, subprocess.Popen(COMMAND, stdin=their_end, stdout=their_end) as process:
        their_end.close()
        lines = our_end.makefile("rw", encoding="utf-8", newline="\n")
        with lines:
            lines.write(json.dumps(execute("socket", "6 * 7")) + "\n")
            lines.flush()
            assert json.loads(lines.readline())["type"] == "started"
            assert json.loads(lines.readline())["result"] == 42
            our_end.shutdown(socket.SHUT_WR)
            assert lines.readline() == ""
        assert process.wait(EXIT_SECONDS) == 0


def test_runner_ends_when_its_stdout_is_closed() -> None:
    with running_runner() as runner:
        assert runner.process.stdout is not None
        runner.process.stdout.close()
        runner.send(execute("unread", "1"))
        assert runner.process.wait(TIMEOUT_SECONDS) == 1
        assert runner.process.stderr is not None
        assert b"hutch: the output cannot be written: Broken pipe" in runner.process.stderr.read()


def test_too_long_line_ends_the_runner_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_MAX_LINE_BYTES", "100000")
    with running_runner() as runner:
        runner.send("x" * 100_001)
        assert runner.process.wait(TIMEOUT_SECONDS) == 1
        assert runner.process.stderr is not None
        assert b"hutch: a line is longer than 100000 bytes" in runner.process.stderr.read()


# --- driven by Hutch ---


def add(a: int, b: int) -> int:
    return a + b


async def test_hutch_uses_the_runner_with_tools() -> None:
    async with hutch.Hutch(runner=COMMAND) as h:
        code = "console.log('hi'); return (await tools.add({a: 1, b: 2})) * 2"
        result = await h.run(code, tools=[add])
        assert (result.ok, result.result, result.logs) == (True, 6, ["hi"])
        wrong = await h.run("return await tools.add({a: 'x', b: 2})", tools=[add])
        assert wrong.error is not None
        assert wrong.error.code == "validation_error"
        assert "Invalid input for tool add" in wrong.error.message
        thrown = await h.run("1;\nthrow new Error('mine')")
        assert thrown.error is not None
        assert (thrown.error.code, thrown.error.message, thrown.error.line) == ("runtime_error", "mine", 2)


def test_hutch_uses_the_runner_in_the_event_loop_of_asyncio() -> None:
    async def main() -> Any:
        async with hutch.Hutch(runner=COMMAND) as h:
            return (await h.run("await tools.add({a: 1, b: 2})", tools=[add])).result

    assert asyncio.run(main()) == 3


async def test_hutch_uses_several_runners_at_once() -> None:
    async with hutch.Hutch(runner=COMMAND, max_processes=2) as h:
        results = await asyncio.gather(
            *(h.run(f"await tools.add({{a: {n}, b: 1}})", tools=[add]) for n in range(4))
        )
        assert [each.result for each in results] == [1, 2, 3, 4]


async def test_hutch_continues_after_a_timeout_and_a_cancellation() -> None:
    called = asyncio.Event()

    async def wait() -> None:
        called.set()
        await asyncio.Event().wait()

    async with hutch.Hutch(runner=COMMAND) as h:
        late = await h.run("for (;;);", timeout_ms=100)
        assert late.error is not None
        assert late.error.code == "timeout"
        task = asyncio.create_task(h.run("await tools.wait()", tools=[wait]))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await h.run("1 + 1")).result == 2


async def test_closing_leaves_no_process_and_no_file() -> None:
    before = set(descendants(os.getpid()))
    async with hutch.Hutch(runner=COMMAND) as h:
        assert (await h.run("1")).ok
        [pid] = [each for each in set(descendants(os.getpid())) - before if arguments_of(each) == COMMAND]
        with Traces(pid) as traces:
            assert traces.processes > 0
            await h.close()
            assert traces.remaining() == []


async def test_runner_that_ignores_the_end_of_its_stdin_is_killed() -> None:
    stubborn = [sys.executable, "-c", "import signal; signal.pause()"]
    async with hutch.Hutch(runner=stubborn) as h:
        running = asyncio.create_task(h.run("1"))
        await asyncio.to_thread(wait_until, lambda: stubborn in map(arguments_of, descendants(os.getpid())))
        await h.close()
    assert stubborn not in map(arguments_of, descendants(os.getpid()))
    result = await running
    assert result.error is not None
    assert result.error.code == "internal_error"


async def test_missing_runner_is_named() -> None:
    async with hutch.Hutch(runner=["/no/such/runner", "--fast"]) as h:
        with pytest.raises(
            hutch.HutchError, match=r"The runner '/no/such/runner' cannot be started: .*No such file"
        ):
            await h.run("1")


async def test_program_that_is_not_a_runner_is_reported_as_lost() -> None:
    async with hutch.Hutch(runner=["/bin/false"]) as h:
        result = await h.run("1")
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "The runner was lost" in result.error.message
