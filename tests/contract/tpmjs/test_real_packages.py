"""Real packages from the npm registry: the expected results, in both protocol versions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import ToolServer, body

# An installation takes 2 s of CPU time. So there is only one package for each build method and for each kind
# of failure.
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text())
"""Calls with the expected `output`, or `code`, `code_1_1` and a part of the error message (`says`). `varies`
names random values, for which only the type is compared.
"""


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['package']}#{case['tool']} {case.get('code', '')}".strip()
)
async def test_result_is_as_expected(real_registry_server: ToolServer, case: dict[str, Any]) -> None:
    call = (case["package"], case["tool"], case["params"])
    answers = await asyncio.gather(
        *(
            real_registry_server.execute(*call, version=case["version"], X_TPMJS_Protocol_Version=protocol)
            for protocol in ("1.0", "1.1")
        )
    )
    for answer, protocol in zip(answers, ("1.0", "1.1"), strict=True):
        assert answer["resolvedVersion"] == case["version"]
        assert answer["runId"]
        if "output" in case:
            assert answer["success"] is True, answer["error"]
            assert normalized(answer["output"], case) == normalized(case["output"], case)
        else:
            assert answer["success"] is False
            assert case["says"] in check_error(answer, case, protocol)


def check_error(answer: dict[str, Any], case: dict[str, Any], protocol: str) -> str:
    """Checks the error code of the response. Returns its message."""
    if protocol == "1.0":
        assert answer["error"]["code"] == case["code"]
        return str(answer["error"]["message"])
    assert answer["errorCode"] == case["code_1_1"]
    assert answer["errorStage"] == ("execute" if answer["errorCode"] == "TOOL_EXECUTION_FAILED" else "load")
    assert answer["retryable"] is False
    return str(answer["error"])


def normalized(output: Any, case: dict[str, Any]) -> Any:
    """Returns the output with type names in place of the values that differ from call to call."""
    return {**output, **{name: type(output[name]).__name__ for name in case.get("varies", ())}}


async def test_real_tools_are_described(real_registry_server: ToolServer) -> None:
    cases = [case for case in CASES if "output" in case]
    answers = await asyncio.gather(
        *(
            real_registry_server.post(
                "/load-and-describe", body(case["package"], case["tool"], version=case["version"])
            )
            for case in cases
        )
    )
    for case, answer in zip(cases, answers, strict=True):
        data = answer.json()
        assert data["success"] is True, data
        assert data["tool"]["name"] == case["tool"]
        assert data["tool"]["inputSchema"]["type"] == "object", case["tool"]
        assert {*case["params"]} <= {*data["tool"]["inputSchema"]["properties"]}


async def test_missing_package_is_reported_without_details_of_the_server(
    real_registry_server: ToolServer,
) -> None:
    answer = await real_registry_server.execute("hutch-has-no-such-package-4f1b9c", "tool")
    assert answer["error"]["code"] == "PACKAGE_NOT_FOUND"
    assert "/" not in answer["error"]["message"]
