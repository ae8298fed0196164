"""Runs the examples and the README's code as a reader would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked import forked_hutch
from tests.support.processes import HUTCH, hutch, running_server, wait_until
from tests.support.toolscripts import stdio

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(script: Path, *arguments: str, cwd: Path) -> str:
    """Returns the script's output. Checks that the script prints nothing to stderr."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_readme_has_one_python_example_of_twelve_lines_that_runs(tmp_path: Path) -> None:
    (code,) = fenced((ROOT / "README.md").read_text(), "python")
    assert len(code.splitlines()) == 12
    script = tmp_path / "readme.py"
    script.write_text(code)
    assert re.fullmatch(r"True 6 None \[\] [\d.]+\n", run(script, cwd=tmp_path))


def test_durable_example_continues_after_its_process_was_killed(tmp_path: Path) -> None:
    lines = run(EXAMPLES / "durable.py", cwd=tmp_path).splitlines()
    assert re.fullmatch(r"process \d+ looks up the price of a chair", lines[0])
    assert lines[1:] == ["suspended: Buy a chair?", "process ended by signal 9", "approved: 80 EUR"]


def test_durable_mcp_example_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    assert run(EXAMPLES / "durable_mcp.py", cwd=tmp_path).splitlines() == [
        "the server was killed while the code waited for an approval",
        "May order of shop be called?",
        '{"item":"chair"}',
        "yes",
        "ordered a chair: 80 EUR",
        "",
        "(2 tool calls)",
    ]


def test_tools_example_shows_types_and_gets_a_value_logs_and_a_tool_error(tmp_path: Path) -> None:
    out = run(EXAMPLES / "tools.py", cwd=tmp_path)
    assert out.startswith("declare namespace shop {")
    assert "max_price?: number | null;" in out
    assert 'reserved ["lamp","chair"]' in out
    assert "tool_error only 0 of desk left" in out
    assert out.endswith("{'left': [1, 6], 'total': 209}\n")


def test_limits_example_names_the_limit_that_stopped_each_guest(tmp_path: Path) -> None:
    printed = dict(line.split(": ", 1) for line in run(EXAMPLES / "limits.py", cwd=tmp_path).splitlines())
    expected = {
        "never ends": "timeout: ",
        "takes all memory": "memory_limit: ",
        "has a mistake": "runtime_error in line 2: ",
        "is not JavaScript": "runtime_error in line 1: ",
        "returns a value that is not JSON": "serialization_error: ",
        "prints too much": "done, 10 lines of log",
        "looks for host APIs": "['undefined', 'undefined', 'undefined'], 0 lines",
    }
    assert printed.keys() == expected.keys()
    assert [name for name in expected if not printed[name].startswith(expected[name])] == []


def test_remote_example_runs_on_a_server_with_local_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_API_KEY", "a key for the server and for its client")
    with running_server() as server:
        out = run(EXAMPLES / "remote.py", server.url.replace("http", "ws"), cwd=tmp_path)
    assert out == "WATER THE PLANTS\nCALL THE BANK\n"


def test_remote_example_without_a_server_reports_it_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
    script = [sys.executable, str(EXAMPLES / "remote.py"), url]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{url}/execbox cannot be reached: ")
    assert line.endswith("Is `hutch serve` running there?")


@pytest.mark.parametrize(
    "name", ["session-start-hook.sh", "abilities/first-run.sh", "flows/first-run.sh"], ids=str
)
def test_shell_example_finds_hutch_in_its_checkout_or_explains_what_to_do(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    script = [str(tmp_path / "examples" / name)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    if name.endswith("first-run.sh"):
        script.append("0")
    without = subprocess.run(script, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (without.returncode, without.stdout) == (1, "")
    [line] = without.stderr.splitlines()
    assert line.startswith("hutch is not on the PATH: run make install in the checkout")
    found = tmp_path / ".venv" / "bin" / "hutch"
    found.parent.mkdir(parents=True)
    found.write_text('#!/bin/sh\necho "the checkout\'s own: $*"\nexit 7\n')
    found.chmod(0o755)
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("the checkout's own: ")


def test_any_language_example_drives_a_runner_with_only_json_lines(tmp_path: Path) -> None:
    script = EXAMPLES / "any_language.py"
    out = run(script, cwd=tmp_path).splitlines()
    assert out == ["-> execute", "<- started", "<- tool_call", "-> tool_result", "<- done", "39.2"]
    assert "import hutch" not in script.read_text()


def test_session_start_hook_starts_a_gateway_and_exports_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    project = tmp_path / "project"
    project.mkdir()
    (project / ".toolscript.json").write_text(json.dumps({"mcpServers": {"github": stdio("tracker")}}))
    monkeypatch.setenv("HUTCH_PORT", str(port))
    monkeypatch.setenv("HOME", str(tmp_path))
    subprocess.run([*HUTCH, "trust", "--yes"], cwd=project, timeout=60, check=True, capture_output=True)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    variables = tmp_path / "variables"
    try:
        # Run the hook twice. The second time, the gateway is already running.
        for _ in range(2):
            hook = [str(EXAMPLES / "session-start-hook.sh"), str(variables)]
            subprocess.run(hook, cwd=project, timeout=60, check=True)
        line = f"export TOOLSCRIPT_GATEWAY_URL=http://127.0.0.1:{port}\n"
        assert variables.read_text() == line * 2
        assert len(gateways(port)) == 1
        code = (
            'import { tools } from "toolscript"; return (await tools.github.createIssue({title: "x"})).title'
        )
        shell = [
            "sh",
            "-c",
            '. "$1" && exec hutch exec "$2"',
            "sh",
            str(variables),
            code,
        ]
        done = subprocess.run(shell, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, '"x"\n', "")
    finally:
        for pid in gateways(port):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not gateways(port))


def test_abilities_example_goes_from_a_new_user_to_an_expired_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PATH", f"{forked_hutch(tmp_path)}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = [str(EXAMPLES / "abilities" / "first-run.sh"), str(port)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    _, ability, profile, followers, _, credential = done.stdout.splitlines()
    assert (ability, profile, followers) == (
        "get_profile",
        '{"name":"Ada","followers_count":42,"you_sent":"Bearer [redacted]"}',
        "42",
    )
    assert credential.split()[:5] == ["127.0.0.1", "Authorization", "header", "expired", "…nown"]
    assert "credentials marked as expired" in done.stderr.lower()
    assert "0123456789abcdef" not in done.stdout + done.stderr


def test_abilities_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "abilities.md").read_text()
    folder = EXAMPLES / "abilities"
    assert fenced(page, "json")[0] == (folder / "profile.json").read_text()
    assert fenced(page, "js")[0] == (folder / "profile.js").read_text()
    assert (folder / "profile.js").read_text() in (ROOT / "README.md").read_text()


def test_flows_example_retries_fails_and_resumes_without_repeating_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PATH", f"{forked_hutch(tmp_path)}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = [str(EXAMPLES / "flows" / "first-run.sh"), str(port)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("exit code 1\n")
    assert "restock.json: ok: restock, 4 steps (ability.execute, code.run, http.get, mcp.call)\n" in before
    assert "stock started, attempt 2\n" in done.stderr
    assert "restock failed at step order (attempt 2)" in done.stderr
    assert "`hutch flow resume monday` resumes it\n" in done.stderr
    assert "resumed: 3 steps were finished before\n" in done.stderr
    assert after.startswith('{"open": true}\n{\n  "order": {\n    "statusCode": 200,\n')
    *_, ticket, shop = after.splitlines()
    assert ticket == "Short of lamp, desk"
    assert json.loads(shop) == {
        "asked": ["/stock", "/stock", "/orders", "/orders", "/open", "/orders"],
        "orders": [{"articles": ["lamp", "desk"], "ticket": 1}],
    }
    assert "0123456789abcdef" not in done.stdout + done.stderr


def test_flows_page_shows_the_examples_and_they_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "rep.md").read_text()
    greet = EXAMPLES / "flows" / "greet.yaml"
    assert greet.read_text() in fenced(page, "yaml")
    assert greet.read_text() in (ROOT / "README.md").read_text()
    done = hutch("flow", "run", str(greet), "--inputs", '{"name": "world"}', cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"greeting": "Hello, WORLD!"})
    shown = "".join(f"# {line}\n" for line in done.stdout.splitlines())
    assert shown in (ROOT / "README.md").read_text()


def gateways(port: int) -> list[int]:
    """Returns the gateway processes that have this port in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HUTCH_PORT={port}".encode() in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"gateway" in words and b"start" in words:
                    found.append(int(process.name))
    return found


def test_every_example_is_run_by_a_test_here() -> None:
    here = Path(__file__).read_text()
    examples = [path for suffix in ("py", "sh") for path in EXAMPLES.glob(f"*.{suffix}")]
    examples += EXAMPLES.glob("*/*.sh")
    assert [path.name for path in examples if f'"{path.name}"' not in here] == []
    folders = [path.parent.name for path in EXAMPLES.glob("*/*.sh")]
    assert [name for name in folders if f'"{name}"' not in here] == []
