"""Runtimes that violate the transport: the run fails at once with error 3001 and exit code 4, and no process
is left.
"""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from tests.contract.rep.runtimes import TIMEOUT_SECONDS, FaultyRun, assert_no_processes_left, faulty, one_step
from tests.support.processes import arguments_of, wait_until

from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator
from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice

# Each fault is tested in the first answer and in a later one.
MISMATCHES = {
    "garbage": "got 'Welcome to the runtime!'. Its stdout must contain only responses; write logs to stderr",
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
    "long-line": "it wrote a line of more than 33554432 bytes",
}


async def expect_broken(fault: str, cause: str, message: str) -> None:
    run = FaultyRun(fault)
    started = time.monotonic()
    outcome = await run.run()
    assert time.monotonic() - started < TIMEOUT_SECONDS / 2, "it waited too long"
    assert (outcome.status, outcome.exit_code, outcome.cancelled) == ("failed", 4, False), outcome
    assert outcome.error is not None
    assert outcome.error["code"] == 3001
    assert outcome.error["data"]["cause"] == cause
    assert re.search(message, outcome.error["message"]), outcome.error["message"]
    assert_no_processes_left()


@pytest.mark.parametrize("fault", MISMATCHES)
@pytest.mark.parametrize("at", ["", "@poll"])
async def test_invalid_answer_is_a_protocol_mismatch(fault: str, at: str) -> None:
    await expect_broken(fault + at, "ProtocolMismatch", MISMATCHES[fault])


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("at", ["", "@poll"])
async def test_end_of_output_is_reported(fault: str, at: str) -> None:
    await expect_broken(fault + at, "Ended", f"The runtime has ended: {ENDS[fault]}")


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
async def test_incomplete_result_is_a_protocol_mismatch(fault: str, message: str) -> None:
    await expect_broken(fault, "ProtocolMismatch", message)


async def test_last_stderr_output_is_reported() -> None:
    outcome = await FaultyRun("exits-7").run()
    assert outcome.error is not None
    assert outcome.error["data"]["details"] == {"stderr": "out of cheese"}


async def test_missing_program_is_reported() -> None:
    choice = RuntimeChoice(engine="none", command=("/no/such/program",))
    outcome = await Orchestrator(one_step(), {}, choice).run()
    assert (outcome.exit_code, outcome.status) == (4, "failed")
    assert outcome.error is not None
    assert outcome.error["data"]["cause"] == "CannotStart"
    assert "/no/such/program" in outcome.error["message"]


@pytest.mark.parametrize(
    "fault", ["silent", "silent@poll", "never-ends", "no-poll-answer", "outlives-everything"]
)
async def test_timeout_is_3001_with_cause_timeout(fault: str) -> None:
    outcome = await FaultyRun(fault, timeout=0.8).run()
    assert (outcome.status, outcome.exit_code) == ("failed", 4)
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["data"]["cause"]) == (3001, "Timeout")
    assert outcome.error["message"] == "The run took longer than its 0.8 s."
    assert_no_processes_left()


@pytest.mark.parametrize("fault", ["late", "late@poll", "", "unknown-events", "own-run-id"])
async def test_unusual_but_allowed_behaviour_completes(fault: str) -> None:
    outcome = await FaultyRun(fault).run()
    assert (outcome.status, outcome.exit_code, outcome.outputs) == ("completed", 0, {"a": 1}), outcome


async def test_runtime_without_a_time_limit_completes() -> None:
    assert (await FaultyRun("", timeout=None).run()).exit_code == 0


async def test_large_stderr_output_is_drained() -> None:
    """The runtime writes 5 MB to stderr before its first answer. That is 80 times the size of a pipe's
    buffer.
    """
    run = FaultyRun("floods-stderr")
    outcome = await run.run()
    assert outcome.exit_code == 0
    assert len(run.stderr) == 5_000_000


async def test_events_of_all_polls_arrive_in_order_and_once() -> None:
    run = FaultyRun("")
    await run.run()
    assert [event["message"] for event in run.events if event["type"] == "log"] == ["1", "2"]


async def test_unknown_events_are_passed_on_and_invalid_ones_are_dropped() -> None:
    run = FaultyRun("unknown-events")
    await run.run()
    assert {event["type"] for event in run.events} == {"weather", "step"}


async def test_large_flow_is_sent_to_a_slow_reader() -> None:
    """The flow is larger than a pipe's buffer, so the orchestrator writes it in several pieces."""
    flow = one_step(text="x" * 3_000_000)
    outcome = await Orchestrator(flow, {}, faulty("late"), RunOptions(timeout=TIMEOUT_SECONDS)).run()
    assert outcome.exit_code == 0


@pytest.mark.parametrize("extra", [(), ("--and-dies",)])
async def test_children_of_a_runtime_end_with_it(extra: tuple[str, ...]) -> None:
    run = FaultyRun("leaves-children", *extra)
    await run.run()
    found = re.search(rb"child (\d+)", run.stderr)
    assert found is not None
    wait_until(lambda: not arguments_of(int(found[1])))


async def test_cancelled_caller_leaves_no_process() -> None:
    run = FaultyRun("never-ends", timeout=None)
    task = asyncio.create_task(run.run())
    await run.has_output.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_no_processes_left()
