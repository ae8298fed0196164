"""Real packages from the npm registry: every one comes out as it did elsewhere, in both protocols."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.served import Executor, body

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text())
"""What to call, and `output`, or `code`, `code_1_1` and what the error `says`. Of times and random values,
which `varies` names by their paths, the kind is compared."""


@pytest.fixture(scope="module")
async def shelf(real: Executor) -> Executor:
    """All of the packages, installed at once."""
    specs = {(case["package"], case["version"]) for case in CASES}
    answers = await asyncio.gather(*(real.execute(name, "-", version=version) for name, version in specs))
    assert {answer["error"]["code"] for answer in answers} <= {"TOOL_NOT_FOUND", "TOOL_EXECUTION_ERROR"}
    return real


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['package']}#{case['tool']} {case.get('code', '')}".strip()
)
async def test_comes_out_as_expected(shelf: Executor, case: dict[str, Any]) -> None:
    call = (case["package"], case["tool"], case["params"])
    answers = await asyncio.gather(
        *(
            shelf.execute(*call, version=case["version"], X_TPMJS_Protocol_Version=protocol)
            for protocol in ("1.0", "1.1")
        )
    )
    for answer, protocol in zip(answers, ("1.0", "1.1"), strict=True):
        assert answer["resolvedVersion"] == case["version"]
        assert answer["runId"]
        if "output" in case:
            assert answer["success"] is True, answer["error"]
            assert told(answer["output"], case) == told(case["output"], case)
        else:
            assert answer["success"] is False
            assert case["says"] in check_error(answer, case, protocol)


def check_error(answer: dict[str, Any], case: dict[str, Any], protocol: str) -> str:
    """The error's code is right; its message."""
    if protocol == "1.0":
        assert answer["error"]["code"] == case["code"]
        return str(answer["error"]["message"])
    assert answer["errorCode"] == case["code_1_1"]
    assert answer["errorStage"] == ("execute" if answer["errorCode"] == "TOOL_EXECUTION_FAILED" else "load")
    assert answer["retryable"] is False
    return str(answer["error"])


def told(output: Any, case: dict[str, Any]) -> Any:
    """An output, with what varies replaced by its kind."""
    copy = json.loads(json.dumps(output))
    for path in case.get("varies", ()):
        *way, last = path.split(".")
        holder = copy
        for step in way:
            holder = holder[step]
        # 2 and 2.5 are of one kind.
        holder[last] = "number" if isinstance(holder[last], (int, float)) else type(holder[last]).__name__
    return copy


async def test_real_tools_describe_themselves(shelf: Executor) -> None:
    cases = [case for case in CASES if "output" in case]
    answers = await asyncio.gather(
        *(
            shelf.post("/load-and-describe", body(case["package"], case["tool"], version=case["version"]))
            for case in cases
        )
    )
    for case, answer in zip(cases, answers, strict=True):
        told = answer.json()
        assert told["success"] is True, told
        assert told["tool"]["name"] == case["tool"]
        assert told["tool"]["inputSchema"]["type"] == "object", case["tool"]
        assert {*case["params"]} <= {*told["tool"]["inputSchema"]["properties"]}


async def test_package_that_is_not_there_is_told_without_a_word_of_the_server(shelf: Executor) -> None:
    answer = await shelf.execute("hutch-has-no-such-package-4f1b9c", "tool")
    assert answer["error"]["code"] == "PACKAGE_NOT_FOUND"
    assert "/" not in answer["error"]["message"]
