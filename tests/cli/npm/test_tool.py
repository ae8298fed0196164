"""Tests of `hutch tool` as a process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from tests.npm.registry import Registry
from tests.support.processes import (
    HUTCH,
    TIMEOUT_SECONDS,
    Traces,
    descendants,
    hutch,
    start_hutch,
    wait_until,
)

MODULE = """
const tool = (execute) => ({ execute });
export const echo = tool((params) => {
  console.log("one");
  console.error("zwei é");
  return params;
});
export const fail = tool(() => {
  console.log("before");
  throw new TypeError("no such luck");
});
export const nothing = tool(() => undefined);
export const env = tool(() => ({ ...process.env }));
export const count = tool(async function* () { yield 1; yield 2; });
export const talk = tool(({ lines }) => { for (let n = 0; n < lines; n++) console.log(n); });
export const wait = tool(() => { console.log("waiting"); return new Promise(() => {}); });
export const typed = {
  inputSchema: { type: "object", properties: { n: { type: "integer" } } },
  execute: (params) => params,
};
export const notATool = 1;
"""
NAME = "cli-tools"

NOT_JSON = """hutch: --params: expected a JSON object such as '{"name": 1}': malformed JSON: """


@pytest.fixture(scope="module")
def tools(npm: Registry) -> Registry:
    """Publishes and installs the test package."""
    npm.publish(NAME, "1.2.3", {"index.js": MODULE})
    done = hutch("packages", "add", f"{NAME}@1.2.3")
    assert done.returncode == 0, done.stderr
    return npm


def tool(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return hutch("tool", f"{NAME}@1.2.3", *arguments, **options)  # type: ignore[arg-type]


def test_output_goes_to_stdout_as_json_and_logs_to_stderr(tools: Registry) -> None:
    done = tool("echo", "--params", '{"a": ["é", null, 1.5]}')
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":["é",null,1.5]}\n', "one\nzwei é\n")


@pytest.mark.parametrize(("name", "output"), [("nothing", "null\n"), ("count", "[1,2]\n")])
def test_output_follows_the_protocol(tools: Registry, name: str, output: str) -> None:
    done = tool(name)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fail"], "before\nhutch: TOOL_EXECUTION_ERROR: no such luck (at index.js:10:9)\n"),
        (["nowhere"], f'hutch: TOOL_NOT_FOUND: {NAME} has no export "nowhere"; its tools are '),
        (["notATool"], "hutch: TOOL_INVALID: "),
        (["wait", "--timeout", "0.3"], "waiting\nhutch: EXECUTION_TIMEOUT: "),
    ],
)
def test_failure_is_printed_with_its_code_and_exits_1(
    tools: Registry, arguments: list[str], message: str
) -> None:
    done = tool(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)


def test_home_that_is_a_file_is_reported_with_a_remedy(npm: Registry, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    done = hutch("tool", "cli-homeless", "x", env={"HUTCH_HOME": str(home)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"hutch: cli-homeless@latest cannot be installed: {home} is a file, not a folder."
        " Set HUTCH_HOME to a folder that you may write."
    )
    assert "PACKAGE_NOT_FOUND" not in done.stderr
    assert "Errno" not in done.stderr


def test_unknown_package_is_reported_and_exits_1(npm: Registry) -> None:
    done = hutch("tool", "cli-nowhere", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        "hutch: PACKAGE_NOT_FOUND: There is no package cli-nowhere"
    )


def test_json_prints_the_response_of_an_executor_on_one_line(tools: Registry) -> None:
    done = hutch("tool", f"{NAME}@^1.2", "echo", "--params", '{"a": 1}', "--json")
    response = json.loads(done.stdout)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert response.pop("executionTimeMs") >= 0
    assert response.pop("runId")
    assert response == {
        "success": True,
        "output": {"a": 1},
        "resolvedVersion": "1.2.3",
        "logs": ["one", "zwei é"],
    }


def test_json_of_a_failure_has_the_error_and_exits_1(tools: Registry) -> None:
    done = tool("fail", "--json")
    response = json.loads(done.stdout)
    assert (done.returncode, done.stderr, response["success"]) == (1, "", False)
    assert response["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": "no such luck"}
    assert response["logs"] == ["before"]


def test_params_come_from_a_file_or_from_stdin(tools: Registry, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('\ufeff{"from": "ünï"}')
    assert tool("echo", "--params", "@params.json", cwd=tmp_path).stdout == '{"from":"ünï"}\n'
    assert tool("echo", "--params", "-", input='{"from": "stdin"}\n').stdout == '{"from":"stdin"}\n'
    assert tool("echo").stdout == "{}\n"


def test_package_gets_only_the_given_variables(tools: Registry) -> None:
    shell = {"CLI_SECRET": "s=1", "CLI_OTHER": "2"}
    done = tool("env", "--env", "CLI_SECRET", "--env", "CLI_OTHER=ö=3", "--env", "CLI_EMPTY=", env=shell)
    given = {"CLI_SECRET": "s=1", "CLI_OTHER": "ö=3", "CLI_EMPTY": ""}
    assert json.loads(done.stdout) == {"HOME": "/tmp", "TMPDIR": "/tmp", **given}


def test_mismatches_with_the_schema_are_warnings_on_stderr(tools: Registry) -> None:
    done = tool("typed", "--params", '{"n": "x"}')
    warning = 'hutch: warning: params.n: expected an integer, got "x"\n'
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"n":"x"}\n', warning)
    refused = tool("typed", "--params", '{"n": "x"}', "--validate")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == 'hutch: INVALID_REQUEST: params.n: expected an integer, got "x"\n'


def test_truncated_logs_are_reported(tools: Registry) -> None:
    done = tool("talk", "--params", '{"lines": 3}', env={"HUTCH_MAX_LOG_LINES": "2"})
    assert (done.stdout, done.stderr) == ("null\n", "0\n1\nhutch: the logs were truncated\n")


def test_refresh_uses_the_version_to_which_a_tag_was_moved(npm: Registry) -> None:
    def run(*options: str) -> str:
        return hutch("tool", "cli-moved@next", "version", *options).stdout

    for version in ("1.0.0", "1.1.0"):
        source = f"export const version = {{ execute: () => {version!r} }};"
        npm.publish("cli-moved", version, {"index.js": source}, tag="next")
        if version == "1.0.0":
            assert run() == '"1.0.0"\n'
    assert run() == '"1.0.0"\n'
    assert run("--refresh") == '"1.1.0"\n'
    assert run() == '"1.1.0"\n'


def test_installation_is_reported_line_by_line_without_a_terminal(npm: Registry) -> None:
    npm.publish("cli-fresh")
    first = hutch("tool", "cli-fresh@1.0.0", "tool")
    assert (first.returncode, first.stdout) == (0, "{}\n")
    assert "hutch: installing cli-fresh@1.0.0\n" in first.stderr
    assert "\x1b" not in first.stderr
    assert hutch("tool", "cli-fresh@1.0.0", "tool").stderr == ""


def test_installation_is_shown_in_place_on_a_terminal(npm: Registry) -> None:
    npm.publish("cli-shown")
    our_end, their_end = pty.openpty()
    with start_hutch(["tool", "cli-shown@1.0.0", "tool"], stderr=their_end) as process:
        os.close(their_end)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    screen = os.read(our_end, 65_536).decode()
    os.close(our_end)
    assert (process.returncode, output) == (0, b"{}\n")
    assert screen.startswith("\r\x1b[Kcli-shown@1.0.0: ")
    assert "installing" in screen
    assert screen.endswith("\r\x1b[K")
    assert "\n" not in screen


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "\n"), (signal.SIGTERM, 1, "hutch: Terminated by a signal.\n")],
)
def test_logs_are_streamed_and_a_signal_leaves_no_process(
    tools: Registry, number: int, code: int, message: str
) -> None:
    with start_hutch(["tool", f"{NAME}@1.2.3", "wait"], text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        with Traces(process.pid) as traces:
            assert traces.processes > 0
            process.send_signal(number)
            assert process.stderr.read() == message
            assert process.wait(TIMEOUT_SECONDS) == code
            assert traces.remaining() == []


def test_signal_ends_an_installation(npm: Registry) -> None:
    npm.publish("cli-hangs")
    npm.faults["cli-hangs"] = "hangs"
    with start_hutch(["tool", "cli-hangs", "tool"], text=True) as process:
        wait_until(lambda: npm.count("cli-hangs") and descendants(process.pid))
        with Traces(process.pid) as traces:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_SECONDS) == 1
            assert traces.remaining() == []
        assert process.stderr is not None
        assert process.stderr.read().endswith("hutch: Terminated by a signal.\n")


def test_weak_isolation_is_reported(tools: Registry) -> None:
    done = tool("nothing", env={"HUTCH_ISOLATION": "process"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "null\n", 1)
    assert done.stderr.startswith("hutch: the isolation is weak (process)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'PACKAGE[@VERSION]|PATH'.\n"),
        (["a", ""], "hutch: NAME: expected the name of an export\n"),
        (["../no-such", "x"], "hutch: ../no-such: there is no such file or folder\n"),
        (["/etc/passwd", "x"], "hutch: /etc/passwd: expected a folder with package.json, or an archive of"),
        (["git+ssh://b", "x"], "hutch: packageName: is a path, a URL or a repository; expected the name of"),
        (["a@file:b", "x"], "hutch: version: has ':'; URLs, repositories, files and aliases are not"),
        (["a", "x", "--params", "[1]"], "hutch: --params: expected a JSON object, got [1]\n"),
        (["a", "x", "--params", "{"], NOT_JSON),
        (["a", "x", "--params", ""], NOT_JSON),
        (["a", "x", "--params", "@/no/such"], "hutch: /no/such: cannot be read: No such file or directory\n"),
        (
            ["a", "x", "--env", "=1"],
            "hutch: --env: expected NAME=VALUE, or NAME for a variable of this shell\n",
        ),
        (
            ["a", "x", "--env", "CLI_UNSET"],
            "hutch: --env: CLI_UNSET is not set in this shell; expected NAME=",
        ),
        (["a", "x", "--timeout", "0"], "--timeout: expected seconds above 0 and up to 300, got 0\n"),
        (["a", "x", "--timeout", "301"], "--timeout: expected seconds above 0 and up to 300, got 301\n"),
        (["a", "x", "--timeout", "soon"], "Invalid value for '--timeout': 'soon' is not a valid float.\n"),
        (["a", "x", "y"], "Got unexpected extra argument (y)\n"),
    ],
)
def test_invalid_input_is_rejected_with_what_was_expected(
    npm: Registry, arguments: list[str], message: str
) -> None:
    done = hutch("tool", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert npm.count("a") == 0


def test_rejected_variable_is_reported_without_its_value() -> None:
    done = subprocess.run(
        [*HUTCH, "tool", "a", "x", "--env", b"A=secret\xff"],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"hutch: --env: 'A': expected UTF-8\n")
