"""`hutch runner`: driven with messages written by hand, and by Hutch itself."""

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
from tests import processes
from tests.messages import MALFORMED, execute, tool_failure, tool_result
from tests.processes import HUTCH, PATIENCE, Traces, arguments_of, descendants, end, until

import hutch

COMMAND = [*HUTCH, "runner"]
# The promise is a second; the rest is for a machine that is busy with something else.
SOON = 3.0


class Runner:
    """The host's end, one line at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def say(self, *messages: dict[str, Any] | str) -> None:
        assert self.process.stdin is not None
        for each in messages:
            line = each if isinstance(each, str) else json.dumps(each)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def done(self, id: str) -> dict[str, Any]:
        """What is said last of an execution, after `started`."""
        assert self.hear() == {"type": "started", "id": id}
        message = self.hear()
        assert (message["type"], message["id"]) == ("done", id)
        return message

    def close(self) -> bytes:
        """Closes its stdin and gives what it still said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return self.process.stdout.read()


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[Runner]:
    # On a busy machine a runner needs more than its 25 ms to hand in the logs of what was cancelled.
    with processes.started(["runner", *arguments], env={"HUTCH_CANCEL_GRACE_MS": "10000"}) as process:
        try:
            yield Runner(process)
        finally:
            end(process)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """One for many tests: it is reusable after every `done`."""
    with started() as one:
        yield one
        assert one.close() == b""
        assert one.process.wait(SOON) == 0
        assert one.process.stderr is not None
        said = one.process.stderr.read().splitlines()
        assert [line for line in said if not line.startswith(b"hutch: dropped a message")] == []


def test_transcript_of_the_specification(runner: Runner) -> None:
    runner.say(execute("exec-1", 'await tools.echo({"ok":true})', tools=("echo",)))
    assert runner.hear() == {"type": "started", "id": "exec-1"}
    call = runner.hear()
    call_id = call.pop("callId")
    assert call == {
        "type": "tool_call",
        "providerName": "tools",
        "safeToolName": "echo",
        "input": {"ok": True},
    }
    runner.say({"type": "tool_result", "callId": call_id, "ok": True, "result": {"ok": True}})
    done = runner.hear()
    assert done.pop("durationMs") > 0
    assert done == {"type": "done", "id": "exec-1", "ok": True, "logs": [], "result": {"ok": True}}


def test_runner_takes_another_execution_after_done(runner: Runner) -> None:
    for number in range(3):
        runner.say(
            execute(f"again-{number}", f"console.log('n'); globalThis.n = (globalThis.n ?? 0) + {number}")
        )
        done = runner.done(f"again-{number}")
        assert (done["result"], done["logs"]) == (number, ["n"])


def test_same_id_may_come_again(runner: Runner) -> None:
    for _ in range(2):
        runner.say(execute("same", "1"))
        assert runner.done("same")["result"] == 1


def test_second_execution_is_refused_while_the_first_goes_on(runner: Runner) -> None:
    runner.say(execute("first", "await tools.wait()", tools=("wait",)))
    assert runner.hear()["type"] == "started"
    call = runner.hear()
    runner.say(execute("second", "2"))
    refused = runner.hear()
    assert (refused["id"], refused["ok"], refused["durationMs"], refused["logs"]) == ("second", False, 0, [])
    assert refused["error"]["code"] == "internal_error"
    runner.say(tool_result(call, "went on"))
    assert runner.hear()["result"] == "went on"


def test_malformed_lines_are_ignored(runner: Runner) -> None:
    runner.say(*MALFORMED)
    runner.say(execute("well", "'formed'"))
    assert runner.done("well")["result"] == "formed"


def test_error_of_the_guest_has_its_line(runner: Runner) -> None:
    runner.say(execute("wrong", "1;\nthrow new TypeError('no')"))
    error = runner.done("wrong")["error"]
    assert (error["code"], error["message"], error["line"]) == ("runtime_error", "no", 2)


def test_error_of_a_tool_keeps_its_code(runner: Runner) -> None:
    runner.say(execute("tool", "await tools.fail({})", tools=("fail",)))
    assert runner.hear()["type"] == "started"
    runner.say(tool_failure(runner.hear(), "validation_error", "not so"))
    assert runner.hear()["error"] == {
        "code": "validation_error",
        "message": "not so",
        "line": 1,
        "column": 12,
    }


def test_error_of_a_tool_can_be_caught(runner: Runner) -> None:
    code = "try { await tools.fail({}) } catch (e) { return [e.code, e.message] }"
    runner.say(execute("caught", code, tools=("fail",)))
    assert runner.hear()["type"] == "started"
    runner.say(tool_failure(runner.hear(), "tool_error", "broken"))
    assert runner.hear()["result"] == ["tool_error", "broken"]


def test_result_of_a_forgotten_call_is_ignored(runner: Runner) -> None:
    runner.say(execute("late", "await tools.slow({})", tools=("slow",), timeoutMs=200))
    assert runner.hear()["type"] == "started"
    call = runner.hear()
    assert runner.hear()["error"]["code"] == "timeout"
    runner.say(tool_result(call, "too late"), execute("after", "3"))
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
    runner.say(execute("stop", code, tools=("go", "wait")))
    assert runner.hear() == {"type": "started", "id": "stop"}
    runner.say(tool_result(runner.hear(), 1))
    if "tools.wait" in code:
        assert runner.hear()["safeToolName"] == "wait"
    runner.say({"type": "cancel", "id": "stop"})
    done = runner.hear()
    assert (done["id"], done["ok"]) == ("stop", False)
    assert done["error"] == {"code": "timeout", "message": "Execution timed out"}
    assert done["logs"] == ["here"]
    assert 0 < done["durationMs"] < 20_000


def test_cancel_of_another_id_changes_nothing(runner: Runner) -> None:
    runner.say(execute("mine", "await tools.wait()", tools=("wait",)))
    assert runner.hear()["type"] == "started"
    call = runner.hear()
    runner.say({"type": "cancel", "id": "yours"}, tool_result(call, 1))
    assert runner.hear()["result"] == 1


def test_timeout_is_the_executions(runner: Runner) -> None:
    runner.say(execute("slow", "for (;;);", timeoutMs=100))
    done = runner.done("slow")
    assert done["error"] == {"code": "timeout", "message": "Execution timed out"}
    assert done["durationMs"] >= 100


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (execute("bad", "1", timeoutMs=0), "options.timeoutMs: expected a number of at least 1, got 0"),
        (execute("bad", "1", engine="v8"), "unknown engine 'v8'; expected one of quickjs, deno"),
        (execute("bad", "1", tools=("a",), namespace="no-name"), "Invalid provider namespace: no-name"),
        (execute("bad", "1" * 4_194_305), "code: has 4194305 bytes; the limit is 4194304"),
    ],
)
def test_execution_that_cannot_be_is_refused_with_the_reason(
    runner: Runner, message: dict[str, Any], expected: str
) -> None:
    runner.say(message)
    done = runner.hear()
    assert (done["type"], done["id"], done["ok"], done["durationMs"]) == ("done", "bad", False, 0)
    assert done["error"]["code"] == "validation_error"
    assert expected in done["error"]["message"]


def test_message_may_be_unicode_of_every_kind(runner: Runner) -> None:
    runner.say(execute("text", "'\u2028\\ud800 é \\0'"))
    assert runner.done("text")["result"] == "\u2028\ud800 é \0"


def test_deno_engine_runs_one_after_another() -> None:
    with started("--engine", "deno") as runner:
        for number in range(2):
            id = f"deno-{number}"
            runner.say(execute(id, "[typeof Deno, await tools.echo({}) as string]", tools=("echo",)))
            assert runner.hear() == {"type": "started", "id": id}
            runner.say(tool_result(runner.hear(), number))
            assert runner.hear()["result"] == ["object", number]


def test_unknown_engine_is_refused_before_anything_is_read() -> None:
    with started("--engine", "v8") as runner:
        assert runner.close() == b""
        assert runner.process.wait(PATIENCE) == 2
        assert runner.process.stderr is not None
        assert b"unknown engine 'v8'; expected one of quickjs, deno" in runner.process.stderr.read()


def test_weak_isolation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_ISOLATION", "process")
    with started() as runner:
        assert runner.close() == b""
        assert runner.process.stderr is not None
        assert runner.process.stderr.read().startswith(b"hutch: the isolation is weak (process)")


# --- the end ---


@pytest.mark.parametrize("code", ["for (;;);", "await new Promise(() => {})"])
def test_runner_ends_soon_after_stdin_with_an_execution_in_flight(code: str) -> None:
    with started() as runner:
        runner.say(execute("long", code))
        assert runner.hear()["type"] == "started"
        with Traces(runner.process.pid) as traces:
            assert traces.processes > 0
            began = time.monotonic()
            last = [json.loads(line) for line in runner.close().splitlines()]
            assert runner.process.wait(PATIENCE) == 0
            assert time.monotonic() - began < SOON
            assert [each["error"]["code"] for each in last] == ["timeout"]
            assert traces.remaining() == []


def test_execution_that_is_about_to_finish_may_do_so_after_stdin() -> None:
    with started() as runner:
        runner.say(execute("short", "await new Promise((r) => setTimeout(r, 50)); 'finished'"))
        assert [json.loads(line) for line in runner.close().splitlines()][-1]["result"] == "finished"


def test_runner_works_on_files(tmp_path: Path) -> None:
    transcript, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    # The last line of a file may lack its end.
    transcript.write_text("nonsense\n" + json.dumps(execute("file", "6 * 7")))
    with transcript.open() as stdin, out.open("w") as stdout:
        subprocess.run(COMMAND, stdin=stdin, stdout=stdout, timeout=PATIENCE, check=True)
    said = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["type"] for each in said] == ["started", "done"]
    assert said[-1]["result"] == 42


def test_runner_works_on_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs) as process:
        theirs.close()
        lines = ours.makefile("rw", encoding="utf-8", newline="\n")
        with lines:
            lines.write(json.dumps(execute("socket", "6 * 7")) + "\n")
            lines.flush()
            assert json.loads(lines.readline())["type"] == "started"
            assert json.loads(lines.readline())["result"] == 42
            ours.shutdown(socket.SHUT_WR)
            assert lines.readline() == ""
        assert process.wait(SOON) == 0


def test_runner_ends_when_nobody_reads_it_any_more() -> None:
    with started() as runner:
        assert runner.process.stdout is not None
        runner.process.stdout.close()
        runner.say(execute("unread", "1"))
        assert runner.process.wait(PATIENCE) == 1
        assert runner.process.stderr is not None
        assert b"hutch: the output cannot be written: Broken pipe" in runner.process.stderr.read()


def test_line_that_is_too_long_ends_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_MAX_LINE_BYTES", "100000")
    with started() as runner:
        runner.say("x" * 100_001)
        assert runner.process.wait(PATIENCE) == 1
        assert runner.process.stderr is not None
        assert b"hutch: a line is longer than 100000 bytes" in runner.process.stderr.read()


# --- driven by Hutch ---


def add(a: int, b: int) -> int:
    return a + b


async def test_hutch_drives_it_with_tools() -> None:
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


def test_hutch_drives_it_in_an_event_loop_of_any_make() -> None:
    async def main() -> Any:
        async with hutch.Hutch(runner=COMMAND) as h:
            return (await h.run("await tools.add({a: 1, b: 2})", tools=[add])).result

    assert asyncio.run(main()) == 3


async def test_hutch_drives_several_at_once() -> None:
    async with hutch.Hutch(runner=COMMAND, max_processes=2) as h:
        results = await asyncio.gather(
            *(h.run(f"await tools.add({{a: {n}, b: 1}})", tools=[add]) for n in range(4))
        )
        assert [each.result for each in results] == [1, 2, 3, 4]


async def test_hutch_goes_on_after_a_timeout_and_a_cancellation() -> None:
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
        await asyncio.to_thread(until, lambda: stubborn in map(arguments_of, descendants(os.getpid())))
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


async def test_runner_that_is_none_is_told_by_its_end() -> None:
    async with hutch.Hutch(runner=["/bin/false"]) as h:
        result = await h.run("1")
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "The runner was lost" in result.error.message
