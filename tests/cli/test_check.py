"""`hutch check`: output, exit codes and invalid arguments."""

from __future__ import annotations

import io
import json
import os
import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.conformance.tpmjs import faults
from tests.conformance.tpmjs.fake_executor import SLOW_PACKAGE, FakeExecutor, running
from tests.support.processes import hutch

from hutch.cli.check import check
from hutch.errors import HutchError, InvalidExecution

KEY = "the-right-key"
# The lines of the specification's sample report. The last line is a failure.
SAMPLE = {
    "Core Requirements:": [
        "GET /health returns 200",
        "GET /health includes protocolVersion",
        "POST /execute-tool accepts valid request",
        "POST /execute-tool returns success response",
        "POST /execute-tool returns error for invalid tool",
        "CORS headers present",
        "OPTIONS preflight works",
    ],
    "Standard Requirements:": [
        "GET /info returns capabilities",
        "Authentication enforced when configured",
        "Execution timeout enforced",
        "Missing: maxExecutionTimeMs in capabilities",
    ],
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeExecutor]:
    with running() as executor:
        yield executor


@pytest.fixture
def executor(server: FakeExecutor) -> Iterator[FakeExecutor]:
    server.reset()
    yield server
    assert server.errors == []


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_report_has_the_format_of_the_specification(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.key = KEY
    assert check(executor.url, api_key=KEY) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[:4] == [
        "TPMJS Executor Compliance Test v1.0.0",
        f"Target: {executor.url}",
        "",
        "Core Requirements:",
    ]
    assert all(re.match(r"  [✓✗\u2013] \S|      \S", line) for line in lines if line.startswith(" "))
    assert re.fullmatch(r"Result: (\d+)/\1 tests passed \(Core: PASS, Standard: PASS\)", lines[-3])
    assert re.fullmatch(r"Extended: (\d+)/\1 tests passed", lines[-2])
    assert lines[-1] == "Not counted: 1 not tested, 1 not supported"
    assert shown.err == ""


def test_all_lines_of_the_sample_report_are_there(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.key = KEY
    executor.max_ms = 50
    # The sample report lists a missing limit as a failure, so remove the limit from the response.
    executor.fault = faults.capability("maxExecutionTimeMs", ...)
    assert check(executor.url, api_key=KEY, slow_tool=f"{SLOW_PACKAGE}@0.1.0#sleep") == 0
    report = capsys.readouterr().out
    for heading, names in SAMPLE.items():
        section = report.partition(heading)[2].partition("\n\n")[0]
        for name in names:
            mark = "✗" if name.startswith("Missing") else "✓"
            assert re.search(rf"^  {mark} {re.escape(name)}( \(.*\))?$", section, re.M), name
    assert "Standard: PARTIAL)" in report


def test_failed_core_check_exits_with_1(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.fault = faults.at("GET /health", implementationVersion=...)
    assert check(executor.url) == 1
    report = capsys.readouterr().out
    assert (
        "  ✗ GET /health includes implementationVersion\n"
        "      GET /health: implementationVersion: expected a string, got nothing\n"
    ) in report
    assert "(Core: FAIL, Standard: PASS)" in report


def test_untested_core_does_not_pass(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.key = KEY
    assert check(executor.url) == 1
    report = capsys.readouterr().out
    assert "  \u2013 POST /execute-tool accepts valid request\n      the executor requires a key" in report
    assert "(Core: INCOMPLETE, Standard: PASS)" in report


def test_failed_extended_check_does_not_change_the_exit_code(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.fault = faults.for_path("//execute-tool", 500)
    assert check(executor.url) == 0
    assert re.search(r"^Extended: (\d+)/(?!\1)\d+ tests passed$", capsys.readouterr().out, re.M)


def test_json_is_one_line_with_all_checks(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.fault = faults.capability("isolation", "strong")
    assert check(executor.url, json=True) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    assert out.count("\n") == 1
    assert (report["target"], report["passed"]) == (executor.url, True)
    assert report["core"]["verdict"] == "PASS"
    assert (report["standard"]["verdict"], report["standard"]["failed"]) == ("PARTIAL", 1)
    assert [each for each in report["checks"] if each["outcome"] == "failed"] == [
        {
            "section": "standard",
            "name": "isolation in capabilities",
            "outcome": "failed",
            "detail": 'expected one of none, process, container, vm; got "strong"',
        }
    ]
    for section in ("core", "standard", "extended"):
        checks = [each for each in report["checks"] if each["section"] == section]
        counts = {key: count for key, count in report[section].items() if key != "verdict"}
        assert sum(counts.values()) == len(checks)


def test_refused_connection_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert check(f"http://127.0.0.1:{port}") == 1
    report = capsys.readouterr().out
    reason = "GET /health: cannot connect: Connection refused; nothing else was tried"
    assert f"\n\nCore Requirements:\n  ✗ GET /health returns 200\n      {reason}\n\nResult: 0/1 " in report
    assert "Result: 0/1 tests passed (Core: FAIL, Standard: NOT TESTED)" in report
    assert report.count("Connection refused") == 1


def test_unknown_host_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("http://no.such.host.invalid") == 1
    assert "GET /health: cannot connect: " in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/", "/base", "/base/"])
def test_base_path_is_kept_without_trailing_slash(
    executor: FakeExecutor, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(f"{executor.url}{path}")
    assert executor.requests[0].raw_path == f"{path.rstrip('/')}/health"


def test_other_tool_and_its_params_are_sent(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    check(executor.url, tool="@scope/name@^1.2#run", params='{"a": [1]}')
    first = next(request for request in executor.requests if request.is_execution)
    assert first.body == {
        "packageName": "@scope/name",
        "version": "^1.2",
        "name": "run",
        "params": {"a": [1]},
    }


def test_tool_without_version_is_sent_without_version(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    check(executor.url, tool="@scope/name#run")
    first = next(request for request in executor.requests if request.is_execution)
    assert first.body == {"packageName": "@scope/name", "name": "run", "params": {}}


def test_key_is_read_from_stdin(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.key = KEY
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
    assert check(executor.url, api_key="-") == 0


def test_loopback_is_reached_without_the_proxy(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://no.such.host.invalid:3128")
    assert check(executor.url) == 0


def test_proxy_of_the_environment_is_used(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fake executor serves as the proxy, because it accepts absolute URLs."""
    monkeypatch.setenv("HTTP_PROXY", executor.url)
    check("http://executor.example")
    assert executor.requests[0].headers["host"] == "executor.example"


def test_unusable_proxy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://proxy.example")
    with pytest.raises(HutchError, match="The environment's proxy or certificates cannot be used"):
        check("http://executor.example")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:4111"}, "URL: expected http://… or https://…, got 'localhost:4111'"),
        ({"url": ""}, "URL: expected http://… or https://…, got ''"),
        ({"url": "http://"}, "URL: expected http://… or https://…, got 'http://'"),
        ({"url": "ftp://example.com"}, "URL: expected http://… or https://…, got 'ftp://example.com'"),
        ({"url": "http://[::1"}, "URL: 'http://[::1' is not a URL: Invalid IPv6 URL"),
        ({"url": "http://a:70000"}, "URL: 'http://a:70000' is not a URL: Port out of range 0-65535"),
        ({"url": "http://256.1.1.1"}, "URL: Invalid IPv4 address: '256.1.1.1'"),
        ({"url": "http://k@a"}, "URL: expected no user, query or fragment; give a key with --api-key"),
        ({"url": "http://a?b"}, "URL: expected no user, query or fragment; give a key with --api-key"),
        ({"api_key": ""}, "--api-key: expected a key of printable ASCII"),
        ({"api_key": "a\nb"}, "--api-key: expected a key of printable ASCII"),
        ({"tool": "name"}, "--tool: expected PACKAGE@VERSION#NAME, got 'name'"),
        ({"tool": "name@#run"}, "--tool: expected PACKAGE@VERSION#NAME, got 'name@#run'"),
        ({"slow_tool": "name@1.0.0#"}, "--slow-tool: expected PACKAGE@VERSION#NAME, got 'name@1.0.0#'"),
        ({"params": "[]"}, "--params: expected a JSON object: Expected `object`, got `array`"),
        ({"params": "{"}, "--params: expected a JSON object: Input data was truncated"),
        ({"slow_params": "{}"}, "--slow-params: expected --slow-tool with it"),
    ],
)
def test_invalid_argument_is_refused_with_what_was_expected(arguments: dict[str, str], message: str) -> None:
    given = {"url": "http://127.0.0.1:9", **arguments}
    with pytest.raises(InvalidExecution) as refused:
        check(**given)  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_progress_is_shown_in_place_on_a_terminal(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    terminal = SimpleNamespace(write=screen.write, flush=screen.flush, isatty=lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    check(executor.url)
    assert "\r\x1b[KGET /health returns 200\r\x1b[K" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_command_passes_every_option(executor: FakeExecutor) -> None:
    executor.key = KEY
    executor.max_ms = 50
    tool = ("--tool", "@scope/name@^1.2#run", "--params", '{"a": [1]}')
    slow = ("--slow-tool", f"{SLOW_PACKAGE}@0.1.0#sleep", "--slow-params", '{"b": 2}')
    done = hutch("check", executor.url, "--api-key", "-", "--json", *tool, *slow, input=f"{KEY}\n")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["passed"] else 1)
    outcomes = {each["name"]: each["outcome"] for each in report["checks"]}
    assert outcomes["Authentication enforced when configured"] == "passed"
    assert outcomes["Execution timeout enforced"] == "passed"
    sent = [request.body for request in executor.requests if request.is_execution]
    assert sent[0]["params"] == {"a": [1]}
    assert {"b": 2} in [body["params"] for body in sent if isinstance(body, dict) and "params" in body]


def test_command_reports_an_invalid_option() -> None:
    done = hutch("check", "localhost:4111")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hutch: URL: expected http://… or https://…, got 'localhost:4111'\n"
