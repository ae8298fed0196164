"""`code.run` steps that call tools. After the runtime is killed, a resumed run continues inside the step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import CallToolResult
from tests.cli.flow.test_runs import runtime_of
from tests.support.flows import flow, node
from tests.support.forked import REAL_RUNTIMES
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.mcp_servers.everything import Everything, app, text
from tests.support.processes import TIMEOUT_SECONDS, hutch, start_hutch, wait_until

NOTE = "const note = (what) => tools.notes.note({what});\n"
HELD = """
    const first = await note("first");
    const held = await note("held").catch((e) => e.message);
    return [first, held, await note("last")];
"""
ASKED = """
    const [left, right] = await Promise.all([note("left"), tools.notes.buy({what: "book"})]);
    return [left, right, await note("last")];
"""


class Notes:
    """An MCP server that records the calls of its tools, and delays a call until the test releases it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.released = threading.Event()
        tools = Everything()
        tools.add("note", self._call, what={"type": "string"})
        tools.add("buy", self._call, what={"type": "string"})
        self.app = app(tools)

    async def _call(self, arguments: dict[str, Any], _: Any) -> CallToolResult:
        self.calls.append(arguments["what"])
        if arguments["what"] == "held":
            await anyio.to_thread.run_sync(self.released.wait, abandon_on_cancel=True)
        return text(arguments["what"])


class FlowHome:
    def __init__(self, folder: Path, url: str) -> None:
        home = folder / "home"
        home.mkdir()
        config = folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"notes": {"type": "http", "url": url}}}))
        (home / "hutch.toml").write_text(f'mcp_config = ["{config}"]\n[approvals]\nnotes__buy = "ask"\n')
        self.env = {"HUTCH_HOME": str(home)}
        self._file = folder / "flow.json"

    def start(self, step: dict[str, Any], run_id: str) -> subprocess.Popen[bytes]:
        """Starts a run of a flow with one step. The runtime is a real process, which a test can kill."""
        self._file.write_text(json.dumps(flow([step])))
        env = {**self.env, **REAL_RUNTIMES}
        command = ["flow", "run", str(self._file), "--run-id", run_id]
        return start_hutch(command, env=env, stdin=subprocess.DEVNULL)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return hutch("flow", *arguments, env=self.env)


@pytest.fixture(scope="module")
def notes() -> Iterator[tuple[Notes, str]]:
    notes = Notes()
    with running_app(notes.app) as served:
        yield notes, f"{served.url}/mcp"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, notes: tuple[Notes, str]) -> FlowHome:
    return FlowHome(tmp_path_factory.mktemp("flows"), notes[1])


def kill_runtime(process: subprocess.Popen[bytes]) -> None:
    os.kill(runtime_of(process), signal.SIGKILL)
    assert process.wait(TIMEOUT_SECONDS) == 4


def test_runtime_that_was_killed_during_a_call_continues_inside_of_the_step(
    home: FlowHome, notes: tuple[Notes, str]
) -> None:
    server = notes[0]
    server.calls = []
    with home.start(node("code", "code.run", code=NOTE + HELD, tools=["notes"]), "held") as process:
        wait_until(lambda: server.calls == ["first", "held"])
        kill_runtime(process)
    server.released.set()
    resumed = home.run("resume", "held")
    assert resumed.returncode == 0, resumed.stderr
    assert "continues inside of the step" in resumed.stderr
    first, held, last = json.loads(resumed.stdout)["code"]
    assert (first, last) == ("first", "last")
    assert "may have had an effect" in held
    assert server.calls == ["first", "held", "last"]


def wait_for_question(home: FlowHome, run_id: str) -> None:
    def is_asking() -> bool:
        runs = json.loads(home.run("runs", "--json").stdout)
        return any((run["run_id"], run.get("waiting_for")) == (run_id, ["code"]) for run in runs)

    wait_until(is_asking)


def resume_and_approve(home: FlowHome, run_id: str) -> tuple[int, str, str]:
    """Resumes a flow whose step asks for an approval again. Returns the exit code, the output and the log."""
    env = {**home.env, **REAL_RUNTIMES}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with start_hutch(["flow", "resume", run_id], env=env, text=True, **pipes) as process:
        assert process.stderr is not None
        log = ""
        while "asks for approval" not in log and (line := process.stderr.readline()):
            log += line
        if "asks for approval" in log:
            # Try until the approval succeeds, because the question may be printed before it is stored.
            wait_until(lambda: home.run("approve", run_id, "code").returncode == 0)
        output, rest = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, output, log + rest


SCRIPT = 'import { tools } from "toolscript";\n'


@pytest.mark.parametrize(
    ("kind", "params", "continued"),
    [
        ("code.run", {"code": NOTE + ASKED, "tools": ["notes"]}, "continues inside of the step"),
        ("toolscript.run", {"code": SCRIPT + NOTE + ASKED}, "begins again with the recorded results"),
    ],
    ids=["quickjs", "script"],
)
def test_runtime_that_was_killed_while_it_waits_for_an_approval_asks_again(
    home: FlowHome,
    notes: tuple[Notes, str],
    request: pytest.FixtureRequest,
    kind: str,
    params: dict[str, Any],
    continued: str,
) -> None:
    server, run_id = notes[0], request.node.callspec.id
    server.calls = []
    with home.start(node("code", kind, **params), run_id) as process:
        wait_for_question(home, run_id)
        wait_until(lambda: server.calls == ["left"])
        kill_runtime(process)
    code, output, log = resume_and_approve(home, run_id)
    assert code == 0, log
    assert continued in log
    assert json.loads(output)["code"] == ["left", "book", "last"]
    assert server.calls == ["left", "book", "last"]


def test_unknown_server_is_named(home: FlowHome, tmp_path: Path) -> None:
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow([node("code", "code.run", code="1", tools=["note"])])))
    done = home.run("run", str(file))
    assert done.returncode != 0
    assert "there is no MCP server 'note'; did you mean notes?" in done.stderr
