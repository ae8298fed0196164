"""Tests of `hutch exec` as a process. The features of scripts are tested in contract/toolscript."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import TIMEOUT_SECONDS, hutch
from tests.support.toolscripts import (
    IMPORT,
    GatewayProcess,
    configure,
    everything_entry,
    gateway,
    start_command,
)

TOKEN = "the gateway's token"


@pytest.fixture(scope="module")
def running(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with a token, one working server and one that cannot be started."""
    folder = tmp_path_factory.mktemp("gateway")
    with everything_entry() as every:
        config = configure(folder, {"every": every, "missing": {"command": "/no/such/program"}})
        with gateway("--config", config, HUTCH_API_KEY=TOKEN) as started:
            yield started


# --- arguments ---


def test_arguments_reach_the_script(tmp_path: Path) -> None:
    done = hutch("exec", "return Deno.args", "a", "--b", "c d", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '["a","--b","c d"]\n')
    (tmp_path / "script.ts").write_text("return Deno.args")
    done = hutch("exec", "-f", "script.ts", "a", "--timeout-of-mine", "3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '["a","--timeout-of-mine","3"]\n'), done.stderr


def test_dash_reads_stdin(tmp_path: Path) -> None:
    assert hutch("exec", "-", input="return 'ünï'", cwd=tmp_path).stdout == '"ünï"\n'


def test_script_of_a_megabyte_runs(tmp_path: Path) -> None:
    (tmp_path / "large.ts").write_text(f"const text: string = '{'x' * 2**20}';\nreturn text.length")
    done = hutch("exec", "-f", "large.ts", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{2**20}\n", "")


def test_missing_code_is_rejected(tmp_path: Path) -> None:
    done = hutch("exec", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected CODE, or --file FILE" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "code", "reason"),
    [
        ("missing.ts", None, 2, "hutch: --file: missing.ts does not exist\n"),
        (".", None, 2, "hutch: --file: . is not a file\n"),
        ("binary.ts", b"\xff\xfe\x00", 1, "UTF-8"),
        ("imports.ts", b'import "./gone.ts";', 1, "gone.ts"),
    ],
)
def test_file_that_cannot_be_run_is_named(
    name: str, text: bytes | None, code: int, reason: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    done = hutch("exec", "-f", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "0"], "--timeout"),
        (["--memory", "1000000"], "--memory"),
        (["-g", "gateway"], "'gateway' is not a gateway URL"),
    ],
)
def test_invalid_option_is_named(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = hutch("exec", *arguments, "console.log(1)", cwd=tmp_path)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert message in done.stderr


# --- results ---


def test_timeout_is_reported_and_exits_124(tmp_path: Path) -> None:
    done = hutch("exec", "--timeout", "0.5", "console.log('x'); for (;;);", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (124, "x\n")
    assert (
        done.stderr == "hutch: The script did not finish within 500 ms; --timeout SECONDS allows up to 300\n"
    )


def test_memory_limit_is_in_megabytes(tmp_path: Path) -> None:
    code = "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1));"
    done = hutch("exec", "--memory", "100", "--no-check", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "hutch: Execution exceeded its memory limit of 100 MiB\n")


def test_exit_code_of_the_script_is_passed_on(tmp_path: Path) -> None:
    assert hutch("exec", "console.log('x'); Deno.exit(7)", cwd=tmp_path).returncode == 7


def test_json_contains_output_and_result_on_one_line(tmp_path: Path) -> None:
    code = "console.log('out'); console.error('err'); return { a: 1 }"
    done = hutch("exec", "--json", code, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    output = json.loads(done.stdout)
    assert output.pop("durationMs") > 0
    assert output.pop("runId")
    assert output == {"ok": True, "exitCode": 0, "result": {"a": 1}, "stdout": "out\n", "stderr": "err\n"}
    output = json.loads(hutch("exec", "--json", "Deno.exit(3)", cwd=tmp_path).stdout)
    assert (output["ok"], output["exitCode"]) == (False, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["-g", "http://127.0.0.1:9", "return 1"], 1, "The gateway at http://127.0.0.1:9 cannot be reached"),
        (["-g", "not-a-url", "return 1"], 2, "'not-a-url' is not a gateway URL"),
        (["-f", "missing.ts"], 2, "missing.ts does not exist"),
        ([], 2, "expected CODE, or --file FILE"),
        (["--timeout", "0", "return 1"], 2, "--timeout"),
    ],
    ids=str,
)
def test_json_contains_the_reason_if_a_script_cannot_start(
    arguments: list[str], code: int, reason: str, tmp_path: Path
) -> None:
    done = hutch("exec", "--json", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    output = json.loads(done.stdout)
    assert (output["ok"], output["exitCode"]) == (False, code)
    assert reason in output["error"]["message"]


def test_ctrl_c_ends_the_script_with_130(tmp_path: Path) -> None:
    with start_command("exec", "console.log('running'); for (;;);", cwd=tmp_path) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"running\n"
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=TIMEOUT_SECONDS)
        assert command.returncode == 130


# --- gateway ---


def test_running_gateway_is_used_with_its_token(running: GatewayProcess, tmp_path: Path) -> None:
    code = f"{IMPORT}return await tools.every.add({{ a: 1, b: 2 }})"
    done = hutch("exec", "-g", running.url, code, env={"HUTCH_API_KEY": TOKEN}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"sum":3}\n', "")


@pytest.mark.parametrize("key", [{}, {"HUTCH_API_KEY": "another"}])
def test_nothing_runs_without_the_token(running: GatewayProcess, key: dict[str, str], tmp_path: Path) -> None:
    done = hutch("exec", "-g", running.url, "console.log(1)", env=key, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"The gateway at {running.url} rejects the API key (401)" in done.stderr
    assert "HUTCH_API_KEY" in done.stderr


def test_unreachable_gateway_is_named(tmp_path: Path) -> None:
    env = {"TOOLSCRIPT_GATEWAY_URL": "http://127.0.0.1:9"}
    for command in (["exec", "console.log(1)"], ["tools", "list"], ["gateway", "status"]):
        done = hutch(*command, env=env, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert "The gateway at http://127.0.0.1:9 cannot be reached" in done.stderr
        assert "hutch gateway start" in done.stderr


def test_failed_server_does_not_affect_the_others(running: GatewayProcess, tmp_path: Path) -> None:
    env = {"HUTCH_API_KEY": TOKEN, "TOOLSCRIPT_GATEWAY_URL": running.url}
    done = hutch("exec", f"{IMPORT}return await tools.every.zero()", env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '"0"\n')
    done = hutch("gateway", "status", env=env, cwd=tmp_path)
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if line.strip().startswith("missing")]
    assert "failed" in line
    assert "/no/such/program" in line


# --- configuration ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mcpServers": {\n  "a": {"command": 5}\n}}', ".toolscript.json:2: mcpServers.a.command: "),
        ('{"mcpServers": {\n  "a": {"command": "x",}\n}}', ".toolscript.json:2: is not JSON"),
    ],
)
def test_invalid_configuration_is_reported_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / ".toolscript.json"
    file.write_text(text)
    done = hutch("exec", "console.log(1)", cwd=tmp_path, env={"HUTCH_MCP_CONFIG": file.name})
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert done.stderr.startswith(f"hutch: {message}")


def test_script_runs_without_any_server(tmp_path: Path) -> None:
    done = hutch("exec", f"{IMPORT}return Object.keys(tools)", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
