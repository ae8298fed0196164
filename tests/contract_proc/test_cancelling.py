"""Cancellation (section 10): said once, waited for, and then the process is ended."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.contract_proc.runtimes import Run, assert_nothing_left

from hutch.doors.rep import orchestrator
from hutch.doors.rep.outcome import RunEnd


async def cancelled(fault: str, *, again: bool = False) -> tuple[RunEnd, float]:
    """A run that is cancelled once it is under way, and how long it took from there."""
    run = Run(fault, timeout=None)
    task = asyncio.create_task(run.end())
    await run.heard.wait()
    began = time.monotonic()
    run.drive.cancel()
    if again:
        run.drive.cancel()
    end = await task
    assert_nothing_left()
    return end, time.monotonic() - began


def assert_cancelled(end: RunEnd) -> None:
    assert (end.status, end.exit_code, end.cancelled, end.summary["cancelled"]) == ("failed", 130, True, True)
    assert end.error is not None
    assert end.error["data"]["cause"] == "Cancelled"


async def test_runtime_that_obeys_is_waited_for() -> None:
    end, seconds = await cancelled("never-ends")
    assert_cancelled(end)
    assert seconds < 4


@pytest.mark.parametrize(
    "fault", ["ignores-cancel", "deaf-to-cancel", "outlives-everything", "cancel-is-unknown"]
)
async def test_runtime_that_does_not_obey_is_ended(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(orchestrator, "CANCEL_SECONDS", 0.5)
    end, seconds = await cancelled(fault)
    assert_cancelled(end)
    assert 0.4 < seconds < 10


async def test_runtime_that_does_not_even_answer_the_poll_is_told_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orchestrator, "CANCEL_SECONDS", 0.5)
    run = Run("no-poll-answer", timeout=None)
    task = asyncio.create_task(run.end())
    await run.heard.wait()
    run.drive.cancel()
    assert_cancelled(await task)
    assert_nothing_left()


async def test_second_time_does_not_wait() -> None:
    end, seconds = await cancelled("ignores-cancel", again=True)
    assert_cancelled(end)
    assert seconds < 4


async def test_run_that_completes_nevertheless_is_completed_and_still_interrupted() -> None:
    end, _ = await cancelled("completes-when-cancelled")
    assert (end.status, end.exit_code, end.cancelled) == ("completed", 130, False)


async def test_before_there_is_a_run_nothing_is_started() -> None:
    run = Run("", timeout=None)
    run.drive.cancel()
    end = await run.end()
    assert_cancelled(end)
    assert run.events == []


async def test_runtime_that_never_answered_has_nothing_to_cancel() -> None:
    run = Run("silent", timeout=None)
    task = asyncio.create_task(run.end())
    await asyncio.sleep(0)
    run.drive.cancel()
    began = time.monotonic()
    assert_cancelled(await task)
    assert time.monotonic() - began < 4


async def test_after_its_end_nothing_happens() -> None:
    run = Run("")
    end = await run.end()
    run.drive.cancel()
    run.drive.cancel()
    assert end.exit_code == 0
