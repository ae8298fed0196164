"""Tests of the health check that the author of a tool declares."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.tpmjs.fake_executor import FakeExecutor, FakeReply, ReceivedRequest
from tests.conformance.tpmjs.faults import in_1_1
from tests.conformance.tpmjs.suite_helpers import finding

from hutch.conformance.tpmjs.health_check import minimal_params

NAME = "1.1: the health check that the tool declares"
MISSING = "the executor reports no healthCheck of the tool"


def executions(executor: FakeExecutor) -> list[dict[str, Any]]:
    """Returns the bodies of the executions of a health check, which have an empty env."""
    return [
        request.body
        for request in executor.requests
        if request.path == "/execute-tool" and request.body.get("env") == {}
    ]


async def test_tool_is_called_with_its_test_params_without_credentials(executor: FakeExecutor) -> None:
    executor.health_check = {"testParams": {"template": "at {{timestamp}}", "list": ["{{timestamp}}", 1]}}
    found = await finding(executor, NAME)
    assert (found.outcome, found.detail) == ("passed", "called with success")
    [body] = executions(executor)
    now = body["params"]["list"][0]
    assert body["params"] == {"template": f"at {now}", "list": [now, 1]}
    assert now.isdigit()


async def test_tool_with_skip_execution_is_not_called(executor: FakeExecutor) -> None:
    executor.health_check = {"skipExecution": True}
    found = await finding(executor, NAME)
    assert (found.outcome, found.detail) == (
        "passed",
        "imported; not called, because it declares skipExecution",
    )
    assert executions(executor) == []


async def test_cleanup_gets_literal_and_mapped_parameters(executor: FakeExecutor) -> None:
    step = {"tool": "deleteThing", "params": {"force": True}, "mapping": {"id": "rendered", "x": "no.where"}}
    executor.health_check = {"testParams": {"template": "thing 7"}, "cleanup": [step]}
    found = await finding(executor, NAME)
    # The cleanup fails, because the fake executor has no tool `deleteThing`. The failed cleanup does not
    # change the verdict.
    assert (found.outcome, found.detail) == ("passed", "called with success; cleanup failed: deleteThing")
    _, cleanup = executions(executor)
    assert (cleanup["name"], cleanup["params"]) == ("deleteThing", {"force": True, "id": "thing 7"})


VERDICTS = {
    ("execute", "TOOL_EXECUTION_FAILED", False): ("passed", "called; the tool itself failed"),
    ("load", "TOOL_NOT_FOUND", False): ("failed", "the tool is broken: load TOOL_NOT_FOUND"),
    ("load", "PACKAGE_IMPORT_FAILED", True): ("not_tested", "the health of the tool is unknown"),
    ("load", "TOOL_CONFIGURATION_REQUIRED", False): ("not_tested", "the health of the tool is unknown"),
    ("execute", "EXECUTION_TIMEOUT", False): ("not_tested", "the health of the tool is unknown"),
}


@pytest.mark.parametrize("failure", VERDICTS)
async def test_verdict_follows_the_policy_of_the_protocol(
    executor: FakeExecutor, failure: tuple[str, str, bool]
) -> None:
    stage, code, retryable = failure

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.path == "/execute-tool":
            in_1_1(success=False, error="e", errorStage=stage, errorCode=code, retryable=retryable)(
                request, reply
            )

    executor.fault = fault
    found = await finding(executor, NAME)
    outcome, detail = VERDICTS[failure]
    assert (found.outcome, found.detail.startswith(detail)) == (outcome, True), found.detail


async def test_tool_without_declaration_is_not_tested(executor: FakeExecutor) -> None:
    executor.health_check = None
    found = await finding(executor, NAME)
    assert (found.outcome, found.detail) == ("not_tested", MISSING)


def test_minimal_parameters_prefer_defaults_and_choices() -> None:
    properties = {
        "a": {"type": "string", "default": "x"},
        "b": {"enum": [3, 4]},
        "c": {"type": "integer"},
        "d": {"type": "object"},
        "e": {"type": "string"},
        "optional": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["a", "b", "c", "d", "e"]}
    assert minimal_params({"inputSchema": schema}) == {"a": "x", "b": 3, "c": 1, "d": {}, "e": "test"}
