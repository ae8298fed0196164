"""`hutch check` passes against our own server, with and without a key, and with both formats of errors for
clients without a protocol version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import no_registry_env, tool
from tests.npm import registry
from tests.support.processes import ServeProcess, running_server

from hutch.cli.check import check

KEY = "the-right-key"


@pytest.fixture(scope="module", params=[None, KEY], ids=["open", "with a key"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[ServeProcess, str | None]]:
    """A server with the tester's registry and the package store that all tests share."""
    key: str | None = request.param
    settings = {"EXECUTOR_API_KEY": key, "HUTCH_TPMJS_STRING_ERRORS": "false"} if key else {}
    with running_server(**settings) as running:
        yield running, key


def test_everything_passes(
    server: tuple[ServeProcess, str | None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    running, key = server
    report = run_check(capfdbinary, running.url, api_key=key)
    assert [each for each in report["checks"] if each["outcome"] == "failed"] == []
    assert report["passed"] is True
    not_tested = {each["name"] for each in report["checks"] if each["outcome"] == "not_tested"}
    needs_a_key = {
        "Authentication enforced when configured",
        "A wrong key is refused",
        "GET /health and GET /info need no key",
        "The scheme bearer is accepted in lower case",
    }
    # The tool of the check declares no health check.
    always = {"Execution timeout enforced", "1.1: the health check that the tool declares"}
    assert not_tested == always | (needs_a_key if key is None else set())
    assert {each["name"] for each in report["checks"] if each["outcome"] == "not_supported"} <= {
        "POST /execute-async"
    }


def test_execution_timeout_is_measured(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
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
    timed = next(each for each in report["checks"] if each["name"] == "Execution timeout enforced")
    assert timed["outcome"] == "passed", timed
    assert report["core"]["verdict"] == "PASS"
    # The specification requires a limit of at least a minute.
    failed = [each["name"] for each in report["checks"] if each["outcome"] == "failed"]
    assert failed == ["maxExecutionTimeMs in capabilities"]


def run_check(capture: pytest.CaptureFixture[bytes], url: str, **options: Any) -> dict[str, Any]:
    check(url, json=True, **options)
    report: dict[str, Any] = json.loads(capture.readouterr().out)
    return report
