"""The contract checks: our own runtime passes each; runtimes with faults fail those that are for these."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract_proc.runtimes import bad
from tests.doors.rep.flows import document, step

from hutch.doors.rep.checks import handshake, running, starting
from hutch.doors.rep.checks.examine import PARTS, examine, look
from hutch.doors.rep.checks.subject import Samples, Subject
from hutch.doors.rep.choice import RuntimeChoice, own

ALL = {check.name: check for checks in PARTS.values() for check in checks}


@pytest.fixture(scope="module")
async def ours() -> AsyncIterator[Subject]:
    subject = Subject(own(), seconds=30)
    await handshake.answers_first(subject)
    yield subject
    await subject.drop()


@pytest.mark.parametrize("name", ALL)
async def test_our_runtime(ours: Subject, name: str) -> None:
    finding = await look(ours, ALL[name])
    assert finding.outcome == "passed", finding


FIRST = "answers Runtime.Capabilities"
COMPLETES = "a run comes to its end, and is completed"


@pytest.mark.parametrize(
    ("fault", "name", "reason"),
    [
        ("silent", FIRST, "no answer within 3 s"),
        ("garbage", FIRST, "expected one JSON object on the line"),
        ("wrong-id", FIRST, "expected id 1, got 2"),
        ("two-on-a-line", FIRST, "expected one JSON object on the line"),
        ("exits", FIRST, "it ended with exit code 0"),
        ("no-limits", "capabilities have version, step_kinds and limits", "limits: expected an object"),
        ("", "another version of Flow IR is refused with 1001", "expected an error, got the result"),
        (
            "refuses-1003",
            "another version of Flow IR is refused with 1001",
            "expected the code 1001, got 1003",
        ),
        ("own-run-id", "a run has the id that it was given", "got 'mine'"),
        ("never-ends", COMPLETES, "still 'running' after 3 s"),
        ("unknown-status", COMPLETES, "Poll: status: expected pending"),
        (
            "unknown-events",
            "events have a type, an RFC 3339 timestamp, and what their type wants",
            "events[1]",
        ),
        ("", "a step that fails has the run fail", "expected failed, got completed"),
        ("ignores-cancel", "Cancel ends a run within 5 s", "still 'running' after 3 s"),
        ("outlives-everything", "it ends when its input does", "goes on 0.5 s after its input ended"),
    ],
)
async def test_runtime_with_a_fault(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str, reason: str
) -> None:
    monkeypatch.setattr(running, "LEAVE_SECONDS", 0.5)
    # Only those that never come to an end are waited for in vain.
    subject = Subject(bad(fault), seconds=3 if "3 s" in reason else 30)
    subject.capabilities = {"step_kinds": ["code.run", "wait", "dsl.emit"]}
    try:
        finding = await look(subject, ALL[name])
    finally:
        await subject.drop()
    assert finding.outcome == "failed", finding
    assert reason in finding.detail


async def test_who_does_not_answer_is_asked_nothing_more() -> None:
    report = await examine(Subject(bad("exits"), seconds=5))
    assert [each.name for each in report.findings] == [FIRST]
    assert not report.passed


async def test_program_that_there_is_not() -> None:
    report = await examine(Subject(RuntimeChoice(engine="none", command=("/no/such/program",))))
    assert "There is no program" in report.findings[0].detail


async def test_what_cannot_be_tried_says_what_would_help() -> None:
    subject = Subject(bad(""), seconds=5)
    finding = await look(subject, ALL["Cancel ends a run within 5 s"])
    assert finding.outcome == "not_tested"
    assert "--lasting FILE" in finding.detail


async def test_flows_that_are_given_are_used() -> None:
    failing = document([step("a", "no.kind.that.is.known")])
    subject = Subject(bad("step-fails"), Samples(failing=failing), seconds=5)
    try:
        for check in (running.fails, starting.keeps_the_id):
            await check(subject)
    finally:
        await subject.drop()
