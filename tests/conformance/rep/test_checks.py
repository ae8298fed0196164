"""The REP suite: the built-in runtime passes every check, and each faulty runtime fails the checks for its
fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.rep.runtimes import faulty
from tests.protocols.rep.flows import document, step

from hutch.conformance.rep import handshake, runs, start_run
from hutch.conformance.rep.suite import GROUPS, check_runtime
from hutch.conformance.rep.target import RuntimeTarget, SampleFlows
from hutch.conformance.runner import run_check
from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice, builtin_runtime

CHECKS = {check.name: check for checks in GROUPS.values() for check in checks}


@pytest.fixture(scope="module")
async def builtin_target() -> AsyncIterator[RuntimeTarget]:
    target = RuntimeTarget(builtin_runtime(), seconds=30)
    await handshake.reports_capabilities(target)
    yield target
    await target.disconnect()


@pytest.mark.parametrize("name", CHECKS)
async def test_builtin_runtime_passes(builtin_target: RuntimeTarget, name: str) -> None:
    finding = await run_check(CHECKS[name], builtin_target)
    assert finding.outcome == "passed", finding


FIRST = "answers Runtime.Capabilities"
COMPLETES = "a run ends as completed"


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
        ("own-run-id", "a run has the requested id", "got 'mine'"),
        ("never-ends", COMPLETES, "still 'running' after 3 s"),
        ("unknown-status", COMPLETES, "Poll: status: expected pending"),
        (
            "unknown-events",
            "events have a type, an RFC 3339 timestamp, and the fields of their type",
            "events[1]",
        ),
        ("", "a failed step fails the run", "expected failed, got completed"),
        ("ignores-cancel", "Cancel ends a run within 5 s", "still 'running' after 3 s"),
        (
            "outlives-everything",
            "the runtime exits when its input ends",
            "still running 0.5 s after its input ended",
        ),
    ],
)
async def test_faulty_runtime_fails(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str, reason: str
) -> None:
    monkeypatch.setattr(runs, "EXIT_SECONDS", 0.5)
    # Use the short limit only for runtimes that never answer or never end. On a busy machine, all other
    # runtimes may need longer.
    target = RuntimeTarget(faulty(fault), seconds=3 if "3 s" in reason else 30)
    target.capabilities = {"step_kinds": ["code.run", "wait", "dsl.emit"]}
    try:
        finding = await run_check(CHECKS[name], target)
    finally:
        await target.disconnect()
    assert finding.outcome == "failed", finding
    assert reason in finding.detail


async def test_suite_stops_without_capabilities() -> None:
    report = await check_runtime(RuntimeTarget(faulty("exits"), seconds=5))
    assert [finding.name for finding in report.findings] == [FIRST]
    assert not report.passed


async def test_missing_program_is_reported() -> None:
    choice = RuntimeChoice(engine="none", command=("/no/such/program",))
    report = await check_runtime(RuntimeTarget(choice))
    assert "There is no program" in report.findings[0].detail


async def test_untested_check_says_what_would_help() -> None:
    target = RuntimeTarget(faulty(""), seconds=5)
    finding = await run_check(CHECKS["Cancel ends a run within 5 s"], target)
    assert finding.outcome == "not_tested"
    assert "--lasting FILE" in finding.detail


async def test_given_flows_are_used() -> None:
    failing = document([step("a", "no.kind.that.is.known")])
    target = RuntimeTarget(faulty("step-fails"), SampleFlows(failing=failing), seconds=5)
    try:
        for check in (runs.step_failure_fails_run, start_run.keeps_the_id):
            await check(target)
    finally:
        await target.disconnect()
