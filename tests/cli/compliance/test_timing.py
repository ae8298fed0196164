"""What is timed: `/health`, alone and under load, the timeout, and who is told to come back."""

from __future__ import annotations

import pytest
from tests.cli.compliance.asking import SLEEP, TIMEOUT, UNDER_LOAD, WAKE, finding
from tests.cli.compliance.executor import Asked, Executor, Reply, Spoil, success
from tests.cli.compliance.spoils import capability, for_code

from hutch.cli.compliance import core, load
from hutch.cli.compliance.subject import Patience, Tool


async def test_health_must_answer_in_time(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "HEALTH_SECONDS", 0.02)
    executor.spoil = lambda asked, reply: setattr(reply, "delay", 0.03)
    found = await finding(executor, "GET /health answers within a second")
    assert (found.outcome, "it may take 0.02 s" in found.detail) == ("failed", True)


async def test_health_must_answer_in_time_while_executions_run(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "HEALTH_SECONDS", 0.02)

    def spoil(asked: Asked, reply: Reply) -> None:
        reply.delay = 0.03 if asked.path == "/health" else 0.0

    executor.spoil = spoil
    found = await finding(executor, UNDER_LOAD)
    assert (found.outcome, found.detail.startswith("p99 of ")) == ("failed", True)
    # The valid request, and the load.
    assert sum(asked.executes for asked in executor.seen) == 1 + load.AT_ONCE * load.ROUNDS


async def test_slow_executor_gets_no_new_rounds(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "ROUNDS_SECONDS", 0)
    assert (await finding(executor, UNDER_LOAD)).outcome == "passed"
    assert sum(asked.executes for asked in executor.seen) == 1 + load.AT_ONCE


async def test_health_that_answers_only_without_load_fails(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LOOKS", 2)

    def spoil(asked: Asked, reply: Reply) -> None:
        reply.hangs = asked.path == "/health"

    executor.spoil = spoil
    found = await finding(executor, UNDER_LOAD, patience=Patience(answer=0.05))
    assert (found.outcome, "got no answer" in found.detail) == ("failed", True)


async def test_health_that_is_ill_under_load_fails(executor: Executor) -> None:
    def spoil(asked: Asked, reply: Reply) -> None:
        reply.status = 503 if asked.path == "/health" else 200

    executor.spoil = spoil
    found = await finding(executor, UNDER_LOAD)
    assert (found.outcome, "expected 200, got 503" in found.detail) == ("failed", True)


async def test_full_executor_that_says_when_to_come_back_passes(executor: Executor) -> None:
    executor.places = 0

    def spoil(asked: Asked, reply: Reply) -> None:
        # The valid request is let in.
        if sum(each.executes for each in executor.seen) == 1:
            reply.status, reply.body = 200, success(1).body
            del reply.headers["Retry-After"]

    executor.spoil = spoil
    found = await finding(executor, "Executions at once are answered or told to come back")
    assert (found.outcome, found.detail) == ("passed", "0 answered, 40 told to come back")


async def test_who_is_told_to_come_back_does(executor: Executor) -> None:
    def spoil(asked: Asked, reply: Reply) -> None:
        if len(executor.seen) < 3:
            reply.status = 429
            reply.headers["Retry-After"] = "0"

    executor.spoil = spoil
    assert (await finding(executor, "POST /execute-tool returns success response")).outcome == "passed"
    assert len(executor.seen) == 3


async def test_who_is_told_to_come_back_gives_up_in_the_end(executor: Executor) -> None:
    def spoil(asked: Asked, reply: Reply) -> None:
        reply.status = 503
        reply.headers["Retry-After"] = "0"

    executor.spoil = spoil
    found = await finding(executor, "POST /execute-tool returns success response")
    assert (found.outcome, "expected 200, got 503" in found.detail) == ("failed", True)


async def test_timeout_is_timed(executor: Executor) -> None:
    executor.max_ms = 300
    found = await finding(executor, TIMEOUT, slow=SLEEP)
    assert (found.outcome, found.detail.endswith("the limit is 0.3 s")) == ("passed", True)


def succeeds_late(asked: Asked, reply: Reply) -> None:
    if asked.of(name="sleep"):
        reply.body, reply.delay = success(1).body, 0.2


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (for_code("EXECUTION_TIMEOUT", code="TOOL_EXECUTION_ERROR"), "expected EXECUTION_TIMEOUT at 0.3 s"),
        (for_code("EXECUTION_TIMEOUT", http=504), "expected 200, got 504"),
        (capability("maxExecutionTimeMs", 900), "already, though GET /info says 0.9 s"),
        (lambda asked, reply: setattr(reply, "hangs", asked.of(name="sleep")), "no answer within 0.8 s"),
        (succeeds_late, "the slow tool was done after 0."),
    ],
    ids=["other code", "other status", "too early", "never", "not at all"],
)
async def test_timeout_that_does_not_come_as_it_should_fails(
    executor: Executor, spoil: Spoil, reason: str
) -> None:
    executor.max_ms = 300
    executor.spoil = spoil
    found = await finding(executor, TIMEOUT, slow=SLEEP, patience=Patience(timeout=0.5))
    assert (found.outcome, reason in found.detail) == ("failed", True), found.detail


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        (None, "--slow-tool PACKAGE@VERSION#NAME"),
        (WAKE, "the slow tool was done after 0.0 s; one is needed that runs for more than 120 s"),
        (Tool("nowhere", None, "sleep", {}), "the slow tool ended with PACKAGE_NOT_FOUND"),
    ],
)
async def test_timeout_is_not_tested_without_a_slow_tool(
    executor: Executor, slow: Tool | None, reason: str
) -> None:
    found = await finding(executor, TIMEOUT, slow=slow)
    assert (found.outcome, reason in found.detail) == ("not_tested", True)


async def test_wait_is_told_on_stderr(executor: Executor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.max_ms = 50
    await finding(executor, TIMEOUT, slow=SLEEP)
    assert capsys.readouterr().err == "hutch: Waiting for the slow tool's timeout: 0 s of at most 65 s\n"
