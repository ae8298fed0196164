"""Timing: `/health` alone and under load, the execution timeout, and Retry-After."""

from __future__ import annotations

import pytest
from tests.conformance.tpmjs.fake_executor import FakeExecutor, FakeReply, Fault, ReceivedRequest, success
from tests.conformance.tpmjs.faults import capability, for_code
from tests.conformance.tpmjs.suite_helpers import SLEEP, TIMEOUT, UNDER_LOAD, WAKE, finding

from hutch.conformance.tpmjs import level1, target
from hutch.conformance.tpmjs.target import SampleTool, Timeouts


async def test_health_must_answer_in_time(executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level1, "HEALTH_SECONDS", 0.02)
    executor.fault = lambda request, reply: setattr(reply, "delay", 0.03)
    found = await finding(executor, "GET /health answers within a second")
    assert (found.outcome, "it may take 0.02 s" in found.detail) == ("failed", True)


async def test_health_must_answer_in_time_while_executions_run(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level1, "HEALTH_SECONDS", 0.02)

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        reply.delay = 0.03 if request.path == "/health" else 0.0

    executor.fault = fault
    found = await finding(executor, UNDER_LOAD)
    assert (found.outcome, found.detail.startswith("p99 of ")) == ("failed", True)
    # The executor got one valid request before the load and the requests of the load. The load was not
    # repeated.
    assert (
        sum(request.is_execution for request in executor.requests)
        == 1 + target.LOAD_CLIENTS * target.LOAD_ROUNDS
    )


async def test_slow_executor_gets_no_new_rounds(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "LOAD_SECONDS", 0)
    assert (await finding(executor, UNDER_LOAD)).outcome == "passed"
    assert sum(request.is_execution for request in executor.requests) == 1 + target.LOAD_CLIENTS


async def test_health_that_hangs_under_load_fails(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "MIN_HEALTH_REQUESTS", 2)

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        reply.hangs = request.path == "/health"

    executor.fault = fault
    found = await finding(executor, UNDER_LOAD, timeouts=Timeouts(response=0.05))
    assert (found.outcome, "got no answer" in found.detail) == ("failed", True)


async def test_health_that_returns_503_under_load_fails(executor: FakeExecutor) -> None:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        reply.status = 503 if request.path == "/health" else 200

    executor.fault = fault
    found = await finding(executor, UNDER_LOAD)
    assert (found.outcome, "expected 200, got 503" in found.detail) == ("failed", True)


async def test_busy_executor_with_retry_after_passes(executor: FakeExecutor) -> None:
    executor.max_running = 0

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        # Accept only the first execution, which is the valid request before the load.
        if sum(request.is_execution for request in executor.requests) == 1:
            reply.status, reply.body = 200, success(1).body
            del reply.headers["Retry-After"]

    executor.fault = fault
    found = await finding(executor, "Concurrent executions are answered or get Retry-After")
    assert (found.outcome, found.detail) == ("passed", "0 answered, 40 with Retry-After")


async def test_retry_after_is_obeyed(executor: FakeExecutor) -> None:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if len(executor.requests) < 3:
            reply.status = 429
            reply.headers["Retry-After"] = "0"

    executor.fault = fault
    assert (await finding(executor, "POST /execute-tool returns success response")).outcome == "passed"
    assert len(executor.requests) == 3


async def test_retries_are_limited(executor: FakeExecutor) -> None:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        reply.status = 503
        reply.headers["Retry-After"] = "0"

    executor.fault = fault
    found = await finding(executor, "POST /execute-tool returns success response")
    assert (found.outcome, "expected 200, got 503" in found.detail) == ("failed", True)


async def test_timeout_is_measured(executor: FakeExecutor) -> None:
    executor.max_ms = 300
    found = await finding(executor, TIMEOUT, slow=SLEEP)
    assert (found.outcome, found.detail.endswith("the limit is 0.3 s")) == ("passed", True)


def succeeds_late(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.has(name="sleep"):
        reply.body, reply.delay = success(1).body, 0.2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (for_code("EXECUTION_TIMEOUT", code="TOOL_EXECUTION_ERROR"), "expected EXECUTION_TIMEOUT at 0.3 s"),
        (for_code("EXECUTION_TIMEOUT", http=504), "expected 200, got 504"),
        (capability("maxExecutionTimeMs", 900), "already, but GET /info reports 0.9 s"),
        (lambda request, reply: setattr(reply, "hangs", request.has(name="sleep")), "no answer within 0.8 s"),
        (succeeds_late, "the slow tool was done after 0."),
    ],
    ids=["other code", "other status", "too early", "no response", "success"],
)
async def test_wrong_timeout_fails(executor: FakeExecutor, fault: Fault, reason: str) -> None:
    executor.max_ms = 300
    executor.fault = fault
    found = await finding(executor, TIMEOUT, slow=SLEEP, timeouts=Timeouts(installation=0.5))
    assert (found.outcome, reason in found.detail) == ("failed", True), found.detail


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        (None, "--slow-tool PACKAGE@VERSION#NAME"),
        (WAKE, "the slow tool was done after 0.0 s; the check needs a tool that runs for more than 120 s"),
        (SampleTool("nowhere", None, "sleep", {}), "the slow tool ended with PACKAGE_NOT_FOUND"),
    ],
)
async def test_timeout_is_not_tested_without_a_slow_tool(
    executor: FakeExecutor, slow: SampleTool | None, reason: str
) -> None:
    found = await finding(executor, TIMEOUT, slow=slow)
    assert (found.outcome, reason in found.detail) == ("not_tested", True)


async def test_waiting_is_reported_on_stderr(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.max_ms = 50
    await finding(executor, TIMEOUT, slow=SLEEP)
    assert capsys.readouterr().err == "hutch: Waiting for the slow tool's timeout: 0 s of at most 65 s\n"
