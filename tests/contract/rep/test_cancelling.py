"""Cancellation (section 10): the orchestrator sends the request once, and gives the runtime time to end the
run before it ends the process.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.contract.rep.runtimes import FaultyRun, assert_no_processes_left

from hutch.protocols.rep.orchestrator import orchestrator
from hutch.protocols.rep.orchestrator.options import RunOutcome


async def cancelled(fault: str, *, twice: bool = False) -> tuple[RunOutcome, float]:
    """Cancels a run in progress. Returns its outcome, and the seconds from the cancellation to the end."""
    run = FaultyRun(fault, timeout=None)
    task = asyncio.create_task(run.run())
    await run.has_output.wait()
    started = time.monotonic()
    run.orchestrator.cancel()
    if twice:
        run.orchestrator.cancel()
    outcome = await task
    assert_no_processes_left()
    return outcome, time.monotonic() - started


def assert_cancelled(outcome: RunOutcome) -> None:
    assert (outcome.status, outcome.exit_code, outcome.cancelled, outcome.summary["cancelled"]) == (
        "failed",
        130,
        True,
        True,
    )
    assert outcome.error is not None
    assert outcome.error["data"]["cause"] == "Cancelled"


async def test_obedient_runtime_ends_the_run_itself() -> None:
    outcome, seconds = await cancelled("never-ends")
    assert_cancelled(outcome)
    assert seconds < 4


@pytest.mark.parametrize(
    "fault", ["ignores-cancel", "hangs-on-cancel", "outlives-everything", "cancel-is-unknown"]
)
async def test_disobedient_runtime_is_killed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(orchestrator, "CANCEL_SECONDS", 0.5)
    outcome, seconds = await cancelled(fault)
    assert_cancelled(outcome)
    assert 0.4 < seconds < 10


async def test_runtime_that_does_not_answer_polls_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orchestrator, "CANCEL_SECONDS", 0.5)
    run = FaultyRun("no-poll-answer", timeout=None)
    task = asyncio.create_task(run.run())
    await run.has_output.wait()
    run.orchestrator.cancel()
    assert_cancelled(await task)
    assert_no_processes_left()


async def test_second_cancel_does_not_wait() -> None:
    outcome, seconds = await cancelled("ignores-cancel", twice=True)
    assert_cancelled(outcome)
    assert seconds < 4


async def test_run_that_completes_after_cancel_is_completed_with_exit_130() -> None:
    outcome, _ = await cancelled("completes-when-cancelled")
    assert (outcome.status, outcome.exit_code, outcome.cancelled) == ("completed", 130, False)


async def test_cancel_before_start_starts_nothing() -> None:
    run = FaultyRun("", timeout=None)
    run.orchestrator.cancel()
    outcome = await run.run()
    assert_cancelled(outcome)
    assert run.events == []


async def test_cancel_during_handshake_does_not_wait() -> None:
    run = FaultyRun("silent", timeout=None)
    task = asyncio.create_task(run.run())
    await asyncio.sleep(0)
    run.orchestrator.cancel()
    started = time.monotonic()
    assert_cancelled(await task)
    assert time.monotonic() - started < 4


async def test_cancel_after_the_end_does_nothing() -> None:
    run = FaultyRun("")
    outcome = await run.run()
    run.orchestrator.cancel()
    run.orchestrator.cancel()
    assert outcome.exit_code == 0
