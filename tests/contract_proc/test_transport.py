"""Runtimes that break the transport: each is 3001 and exit 4, at once, with the reason, and gone."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from tests.contract_proc.runtimes import PATIENCE, Run, assert_nothing_left, bad, one_step
from tests.processes import arguments_of, until

from hutch.doors.rep.choice import RuntimeChoice
from hutch.doors.rep.orchestrator import run_flow
from hutch.doors.rep.outcome import RunOptions

# Whatever is wrong with an answer, it is wrong with the first and with a later one.
MISMATCHES = {
    "garbage": "got 'Welcome to the runtime!'. Only answers belong on its stdout, logs on stderr",
    "empty-object": 'jsonrpc: expected "2.0"',
    "list": "expected a JSON object",
    "request": "expected an answer, got a request",
    "wrong-id": "expected id",
    "id-as-text": "expected id",
    "null-id": "expected id",
    "two-on-a-line": "expected one JSON object on the line",
    "both": "expected either a result or an error",
    "neither": "expected either a result or an error",
    "jsonrpc-1": 'jsonrpc: expected "2.0"',
    "nan": "expected one JSON object on the line",
    "not-utf8": "expected one JSON object on the line",
    "nested": "expected one JSON object on the line|expected at most",
    "null-id-error": "The runtime does not serve Runtime.* what",
    "twice": "expected nothing, got an answer to|expected id",
}
ENDS = {
    "half-a-line": "its output ended in the middle of a line, and it ended with exit code 0",
    "half-a-line-and-waits": "its output ended in the middle of a line",
    "closes-output": "it closed its output",
    "exits": "it ended with exit code 0",
    "exits-7": "it ended with exit code 7",
    "dies": "it was ended by signal 11",
    "long-line": "it said a line of more than 33554432 bytes",
}


async def broken(fault: str, cause: str, message: str) -> None:
    run = Run(fault)
    began = time.monotonic()
    end = await run.end()
    assert time.monotonic() - began < PATIENCE / 2, "it waited for more than it could get"
    assert (end.status, end.exit_code, end.cancelled) == ("failed", 4, False), end
    assert end.error is not None
    assert end.error["code"] == 3001
    assert end.error["data"]["cause"] == cause
    assert re.search(message, end.error["message"]), end.error["message"]
    assert_nothing_left()


@pytest.mark.parametrize("fault", MISMATCHES)
@pytest.mark.parametrize("at", ["", "@poll"])
async def test_what_is_no_answer_is_a_mismatch(fault: str, at: str) -> None:
    await broken(fault + at, "ProtocolMismatch", MISMATCHES[fault])


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("at", ["", "@poll"])
async def test_output_that_ends_is_the_end(fault: str, at: str) -> None:
    await broken(fault + at, "Ended", f"The runtime is gone: {ENDS[fault]}")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no-run-id", "StartRun: run_id: expected a text"),
        ("error-without-code", "error: expected an object with an integer as code"),
        ("unknown-status", "Poll: status: expected pending, running, completed, failed, got '\"napping\"'"),
        ("no-status", "Poll: status: expected"),
        ("events-are-an-object", "Poll: events: expected a list"),
        ("summary-is-a-text", "Poll: summary: expected an object"),
    ],
)
async def test_results_that_lack_what_they_must_have_are_a_mismatch(fault: str, message: str) -> None:
    await broken(fault, "ProtocolMismatch", message)


async def test_what_a_runtime_said_last_is_told() -> None:
    end = await Run("exits-7").end()
    assert end.error is not None
    assert end.error["data"]["details"] == {"stderr": "out of cheese"}


async def test_program_that_cannot_be_started() -> None:
    choice = RuntimeChoice(engine="none", command=("/no/such/program",))
    end = await run_flow(one_step(), {}, choice)
    assert (end.exit_code, end.status) == (4, "failed")
    assert end.error is not None
    assert end.error["data"]["cause"] == "CannotStart"
    assert "/no/such/program" in end.error["message"]


@pytest.mark.parametrize(
    "fault", ["silent", "silent@poll", "never-ends", "no-poll-answer", "outlives-everything"]
)
async def test_time_that_is_over_is_3001_with_the_cause_timeout(fault: str) -> None:
    end = await Run(fault, timeout=0.8).end()
    assert (end.status, end.exit_code) == ("failed", 4)
    assert end.error is not None
    assert (end.error["code"], end.error["data"]["cause"]) == (3001, "Timeout")
    assert end.error["message"] == "The run took longer than its 0.8 s."
    assert_nothing_left()


@pytest.mark.parametrize("fault", ["late", "late@poll", "", "unknown-events", "own-run-id"])
async def test_what_is_odd_but_allowed_completes(fault: str) -> None:
    end = await Run(fault).end()
    assert (end.status, end.exit_code, end.outputs) == ("completed", 0, {"a": 1}), end


async def test_runtime_without_a_time_limit_completes() -> None:
    assert (await Run("", timeout=None).end()).exit_code == 0


async def test_stderr_is_drained_however_much_there_is() -> None:
    """5 MB before the first answer: 80 times what a pipe holds."""
    run = Run("floods-stderr")
    end = await run.end()
    assert end.exit_code == 0
    assert len(run.stderr) == 5_000_000


async def test_events_of_all_polls_are_heard_in_order_and_once() -> None:
    run = Run("")
    await run.end()
    assert [each["message"] for each in run.events if each["type"] == "log"] == ["1", "2"]


async def test_unknown_events_are_passed_on_and_what_is_no_event_is_not() -> None:
    run = Run("unknown-events")
    await run.end()
    assert {each["type"] for each in run.events} == {"weather", "step"}


async def test_large_flow_goes_to_a_runtime_that_reads_slowly() -> None:
    """More than a pipe holds, so that it has to be written piece by piece."""
    flow = one_step(text="x" * 3_000_000)
    end = await run_flow(flow, {}, bad("late"), RunOptions(timeout=PATIENCE))
    assert end.exit_code == 0


@pytest.mark.parametrize("more", [(), ("--and-dies",)])
async def test_children_of_a_runtime_end_with_it(more: tuple[str, ...]) -> None:
    run = Run("leaves-children", *more)
    await run.end()
    found = re.search(rb"child (\d+)", run.stderr)
    assert found is not None
    until(lambda: not arguments_of(int(found[1])))


async def test_caller_that_is_cancelled_leaves_no_process() -> None:
    run = Run("never-ends", timeout=None)
    task = asyncio.create_task(run.end())
    await run.heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_nothing_left()
