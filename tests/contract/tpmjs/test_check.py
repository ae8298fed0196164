"""`hutch check` passes against `hutch serve`, with and without a key, and with both error formats that
clients without a protocol version can get.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import no_registry_env, tool
from tests.npm import registry
from tests.support.processes import running_server

from hutch.cli.check import check

KEY = "the-right-key"


# The default tool of `hutch check` declares no health check, so this check is not tested.
NOT_TESTED = {"1.1: the health check that the tool declares"}
NEED_A_KEY = {
    "Authentication enforced when configured",
    "A wrong key is refused",
    "GET /health and GET /info need no key",
    "The scheme bearer is accepted in lower case",
}


def test_everything_passes_with_a_key_and_a_real_package(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Uses the tester's registry and the package store that all tests share."""
    settings = {"EXECUTOR_API_KEY": KEY, "HUTCH_TPMJS_STRING_ERRORS": "false"}
    with running_server(**settings) as running:
        report = run_check(capfdbinary, running.url, api_key=KEY)
    assert names(report, "failed") == set()
    assert report["passed"] is True
    assert names(report, "not_tested") == NOT_TESTED | {"Execution timeout enforced"}
    assert names(report, "not_supported") == set()


def test_open_server_passes_and_its_execution_timeout_is_measured(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with registry.run_registry() as npm:
        environment = {
            **no_registry_env(),
            "NPM_CONFIG_REGISTRY": npm.url,
            "HUTCH_HOME": str(tmp_path),
            "HUTCH_TOOL_TIMEOUT_MS": "1500",
        }
        npm.publish("made-up-echo", files={"index.js": tool("return params")})
        npm.publish("made-up-sleep", files={"index.js": tool("await new Promise(() => {})")})
        with running_server(**environment) as running:
            report = run_check(
                capfdbinary, running.url, tool="made-up-echo#tool", slow_tool="made-up-sleep@1.0.0#tool"
            )
    assert "Execution timeout enforced" in names(report, "passed")
    assert report["core"]["verdict"] == "PASS"
    # The specification requires a limit of at least a minute. The server has a shorter limit, so this check
    # fails.
    assert names(report, "failed") == {"maxExecutionTimeMs in capabilities"}
    # `hutch check` knows the expected output of the default tool only, so it cannot check the output of this
    # tool.
    assert names(report, "not_tested") == NOT_TESTED | NEED_A_KEY | {"The tool's output is returned"}
    assert names(report, "not_supported") == set()


def names(report: dict[str, Any], outcome: str) -> set[str]:
    """Returns the names of the checks with this outcome."""
    return {each["name"] for each in report["checks"] if each["outcome"] == outcome}


def run_check(capture: pytest.CaptureFixture[bytes], url: str, **options: Any) -> dict[str, Any]:
    check(url, json=True, **options)
    report: dict[str, Any] = json.loads(capture.readouterr().out)
    return report
