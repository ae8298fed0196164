"""Tests of `hutch flow run` as a process, with every exit code."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.rep.runtimes import FILE
from tests.protocols.rep.flows import chain, document, edge, step
from tests.protocols.rep.manifests import manifest_entry
from tests.support.forked import REAL_RUNTIMES
from tests.support.processes import (
    TIMEOUT_SECONDS,
    Traces,
    arguments_of,
    descendants,
    hutch,
    start_hutch,
    stop_process,
)

from hutch.protocols.rep.ir.parse import parse_flow

DONE = document(
    [step("a", "wait", {"seconds": 0}), step("b", "finish", {"outputs": "$input"})], chain("a", "b")
)
LONG = document([step("a", "wait", {"seconds": 600})])


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes an empty folder the current directory and the home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_flow(document: Any, name: str = "flow.json") -> str:
    Path(name).write_text(json.dumps(document))
    return name


def run(document: Any, *arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return hutch("flow", "run", write_flow(document), *arguments, **given)


def faulty_runtime(*fault: str) -> list[str]:
    return ["--executor", " ".join((sys.executable, "-I", "-S", str(FILE), *fault))]


def parsed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Parses the one JSON object on stdout."""
    assert done.stdout.count("\n") == 1, done
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


# --- exit codes ---


def test_outputs_go_to_stdout_and_progress_to_stderr() -> None:
    done = run(DONE, "--inputs", '{"x": [1, "é"]}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"x": [1, "é"]}
    lines = done.stderr.splitlines()
    assert lines[0] == "hutch: a started"
    assert re.fullmatch(r"hutch: a succeeded \([\d.]+ s\)", lines[1])
    assert re.fullmatch(r"hutch: demo completed in [\d.]+ s", lines[-1])


def test_json_is_one_object_with_result_and_events() -> None:
    found = parsed(run(DONE, "--inputs", '{"x": 1}', "--json", "--run-id", "my-run"))
    assert (found["run_id"], found["flow"], found["state"], found["error"]) == (
        "my-run",
        "demo",
        "completed",
        None,
    )
    assert found["summary"]["outputs"] == {"x": 1}
    assert found["runtime"]["engine"] == "hutch"
    states = [(each["step_id"], each["state"]) for each in found["events"] if each["type"] == "step"]
    assert states == [("a", "started"), ("a", "succeeded"), ("b", "started"), ("b", "succeeded")]


def test_flow_can_be_in_a_deeply_nested_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 200) / ("b" * 200)
    folder.mkdir(parents=True)
    (folder / "flow.json").write_text(json.dumps(DONE))
    done = hutch("flow", "run", str(folder / "flow.json"), "--inputs", '{"x": 1}')
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, {"x": 1}), done.stderr


def test_failed_step_is_exit_1() -> None:
    failing = document([step("a", "http.get", {"url": "http://127.0.0.1:9/"}, retries=1)])
    done = run(failing, "--egress-allow", "127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hutch: a started, attempt 2\n" in done.stderr
    assert "demo failed at step a (attempt 2) after" in done.stderr


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({**DONE, "graph": {"nodes": [], "edges": []}}, "graph.nodes: "),
        ({**DONE, "version": "2.0.0"}, 'version: expected "1.0.0", got "2.0.0"'),
        (document([step("a"), step("a")]), "graph.nodes[1].id: "),
        (
            document([step("a"), step("b")], [edge("a", "b"), edge("b", "a")]),
            "cycle|circle|comes before itself",
        ),
        (document([step("a")], [edge("a", "zzz")]), "graph.edges[0].to: "),
        ("no flow at all", "expected an object with Flow IR"),
    ],
)
def test_invalid_flow_is_exit_2_before_any_process_starts(broken: Any, message: str) -> None:
    """The executor is a program that creates the file `started`. If the file is missing, the program was not
    started.
    """
    Path("trace.py").write_text("open('started', 'w')")
    done = run(broken, "--executor", "trace.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(re.escape(message) if "|" not in message else message, done.stderr), done.stderr
    assert not Path("started").exists()


def test_invalid_flow_is_reported_as_json() -> None:
    found = parsed(run({**DONE, "version": "2.0.0"}, "--json"))
    assert (found["exit_code"], found["state"], found["error"]["code"]) == (2, "failed", 1001)
    assert found["error"]["data"]["details"] == {"expected": "1.0.0", "received": "2.0.0"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ('{"x": "1"}', "inputs.x: "),
        ("{}", "inputs.x: "),
        ("[1]", "inputs: expected an object"),
        ("{x: 1}", "inputs: expected JSON"),
        ("@none.json", "inputs: none.json cannot be read"),
    ],
)
def test_invalid_inputs_are_exit_3(inputs: str, message: str) -> None:
    flow = document([step("a", "wait", {"seconds": 0})], inputs={"x": {"type": "int"}})
    done = run(flow, "--inputs", inputs)
    assert (done.returncode, done.stdout) == (3, "")
    assert message in done.stderr


def test_missing_inputs_are_reported_with_an_example() -> None:
    flow = document([step("a", "finish")], inputs={"x": {"type": "int"}, "y": {"type": "string"}})
    assert 'hutch: Give it with --inputs \'{"x": …, "y": …}\', or --inputs @FILE.\n' in run(flow).stderr
    done = run(flow, "--inputs", "flow.json")
    assert done.returncode == 3
    assert "did you mean @flow.json?" in done.stderr


def test_inputs_from_a_file_and_from_stdin() -> None:
    Path("inputs.json").write_text('{"x": 1}')
    assert json.loads(run(DONE, "--inputs", "@inputs.json").stdout) == {"x": 1}
    assert json.loads(run(DONE, "--inputs", "@-", input='{"x": 2}').stdout) == {"x": 2}


def test_unsupported_kind_is_exit_3_and_the_cache_can_be_cleared(home: Path) -> None:
    done = run(document([step("a", "http.gte")]))
    assert done.returncode == 3
    assert "has no steps of the kind http.gte (did you mean http.get?)" in done.stderr
    file = home / ".trace_mind/runtime_capabilities/hutch.json"
    assert "http.get" in json.loads(file.read_text())["step_kinds"]
    assert hutch("runtime", "cache", "clear", "--engine", "other").stdout == "nothing is cached for other\n"
    assert hutch("runtime", "cache", "clear", "--engine", "hutch").stdout == f"removed {file}\n"
    assert not file.exists()
    assert hutch("runtime", "cache", "clear", "--engine", "../hutch").returncode == 2


def test_flow_rejected_by_the_runtime_is_exit_3() -> None:
    """The command accepts the flow, because only the runtime checks the parameters of steps."""
    done = run(document([step("a", "wait", {"hours": 1})]))
    assert done.returncode == 3
    assert "hutch: graph.nodes[0].with" in done.stderr


@pytest.mark.parametrize("fault", ["exits@poll", "garbage"])
def test_failing_runtime_is_exit_4(fault: str) -> None:
    found = parsed(run(document([step("a", "test.step")]), *faulty_runtime(fault), "--json"))
    assert (found["exit_code"], found["error"]["code"]) == (4, 3001)


def test_timeout_is_exit_4() -> None:
    done = run(LONG, "--timeout", "1", "--json")
    found = parsed(done)
    assert (found["exit_code"], found["error"]["code"]) == (4, 3001)
    assert found["error"]["data"]["cause"] == "Timeout"


def test_program_that_cannot_be_started_is_exit_4() -> None:
    done = run(DONE, "--executor", "./no-such-runtime")
    assert done.returncode == 4
    assert "There is no program './no-such-runtime' that can be run." in done.stderr


@pytest.mark.parametrize(
    "argument",
    [
        "--timeout=-1",
        "--timeout=nan",
        "--run-id=",
        "--run-id=a/b",
        "--egress-allow=http://127.0.0.1:80",
        "--concurrency=0",
        "--executor=",
        "--executor='",
        "--runtime=../x",
        "--runtime=unheard-of",
    ],
)
def test_invalid_options_are_exit_2(argument: str) -> None:
    done = run(DONE, argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


# --- signals ---


@contextlib.contextmanager
def running(document: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a run and waits until its first step has started."""
    command = ["flow", "run", write_flow(document), *arguments]
    with start_hutch(command, env=REAL_RUNTIMES, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line == "hutch: a started\n":
                    break
            else:
                raise AssertionError("the first step did not start")
            yield process
        finally:
            stop_process(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_cancelled_and_exit_130(number: signal.Signals) -> None:
    with running(LONG) as process, Traces(process.pid) as traces:
        assert traces.processes
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, stdout) == (130, "")
        assert "hutch: demo was cancelled after" in stderr
        assert traces.remaining() == []


def test_second_signal_does_not_wait_for_a_runtime_that_ignores_cancel() -> None:
    with running(document([step("a", "test.step")]), *faulty_runtime("ignores-cancel")) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("cancelling" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
        assert time.monotonic() - began < 4.5


@pytest.mark.parametrize("arguments", [[], faulty_runtime("outlives-everything")])
def test_killed_orchestrator_leaves_no_runtime(arguments: list[str]) -> None:
    kind = "test.step" if arguments else "wait"
    flow = document([step("a", kind, {"seconds": 600})])
    with running(flow, *arguments) as process, Traces(process.pid) as traces:
        assert traces.processes
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        assert traces.remaining() == []


def test_killed_runtime_is_exit_4() -> None:
    with running(LONG) as process, Traces(process.pid) as traces:
        [runtime] = [pid for pid in descendants(process.pid) if "serve" in arguments_of(pid)]
        os.kill(runtime, signal.SIGKILL)
        _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 4
        # Two errors are possible, because either the end of the output or the exit of the process is noticed
        # first.
        assert "The runtime has ended: " in stderr
        assert "it was ended by signal 9." in stderr
        assert traces.remaining() == []


# --- choice of the runtime ---


def bind_project(language: str = "python", plugins: str = "python", executor: str = "runtime.py") -> None:
    Path("tm/config").mkdir(parents=True)
    Path("tm/config/runtime.yaml").write_text(
        f"runtime:\n  engine: own\n  language: {language}\n  plugins_language: {plugins}\n"
        f"  executor_path: {executor}\n"
    )
    Path(executor).write_text(f"import runpy\nrunpy.run_path({str(FILE)!r}, run_name='__main__')\n")
    assert hutch("trust", "--yes").returncode == 0


def test_runtime_of_the_project_is_used_in_its_subfolders() -> None:
    bind_project()
    Path("deep/down").mkdir(parents=True)
    write_flow(document([step("a", "test.step")]))
    found = parsed(hutch("flow", "run", "../../flow.json", "--json", cwd=Path("deep/down")))
    assert (found["exit_code"], found["runtime"]) == (0, {"engine": "own", "version": "1.2.3"})


def test_other_runtime_can_be_chosen_for_one_run() -> None:
    bind_project()
    assert parsed(run(DONE, "--runtime", "hutch", "--json"))["runtime"]["engine"] == "hutch"
    mine = parsed(run(document([step("a", "test.step")]), *faulty_runtime(), "--json"))
    assert mine["runtime"]["engine"] == "faulty_runtime"


def test_languages_that_do_not_match_are_exit_3_with_advice() -> None:
    bind_project(language="rust", plugins="c")
    found = parsed(run(DONE, "--json"))
    assert found["exit_code"] == 3
    assert "hutch init --runtime" in found["error"]["message"]


# --- options ---


def test_flows_of_a_manifest_run_each_other_by_name() -> None:
    inner = document([step("x", "finish", {"outputs": "$input"})], name="inner")
    outer = document([step("a", "flow.run", {"flow": "inner", "inputs": {"n": 7}})], name="outer")
    entries = []
    for each in (inner, outer):
        name = f"{each['flow']['name']}.json"
        write_flow(each, name)
        entries.append(manifest_entry(parse_flow(each), name))
    Path("out").mkdir()
    write_flow([{**each, "ir_path": f"../{each['ir_path']}"} for each in entries], "out/manifest.json")
    done = hutch("flow", "run", "--manifest", "out/manifest.json", "--flow", "outer")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"a": {"n": 7}}


def test_files_are_relative_to_the_flow() -> None:
    Path("flows").mkdir()
    write_flow(document([step("x", "finish", {"outputs": 5})]), "flows/inner.json")
    write_flow(document([step("a", "flow.run", {"flow": "inner.json"})]), "flows/outer.json")
    done = hutch("flow", "run", "flows/outer.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"a": 5}


def test_shell_needs_the_flag() -> None:
    shell = document([step("a", "shell.run", {"command": "/usr/bin/true"})])
    assert run(shell).returncode == 3
    assert run(shell, "--allow-shell").returncode == 0


def test_stderr_of_a_runtime_is_passed_on_up_to_a_limit() -> None:
    done = run(document([step("a", "test.step")]), *faulty_runtime("floods-stderr"))
    assert done.returncode == 0
    assert "eeee" in done.stderr
    assert "the rest is omitted" in done.stderr
    assert len(done.stderr) < 200_000


# --- terminal ---


class Terminal:
    """A `hutch flow run` process at a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.our_end, their_end = pty.openpty()
        env = {"TERM": "xterm", "COLUMNS": "80", "LINES": "12"}
        self.process = start_hutch(["flow", "run", *arguments], env=env, stdin=their_end, stderr=their_end)
        os.close(their_end)
        self.seen = ""

    def until(self, part: str) -> None:
        while part not in self.seen:
            self.seen += os.read(self.our_end, 4096).decode()

    def rest(self) -> bytes:
        assert self.process.stdout is not None
        # On Linux, reading raises OSError when the other end of the pseudo-terminal is closed.
        with contextlib.suppress(OSError):
            while data := os.read(self.our_end, 4096):
                self.seen += data.decode()
        out = self.process.stdout.read()
        self.process.wait(TIMEOUT_SECONDS)
        return out

    def close(self) -> None:
        stop_process(self.process)
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self.our_end)


@contextlib.contextmanager
def terminal(document: Any, *arguments: str) -> Iterator[Terminal]:
    one = Terminal(write_flow(document), *arguments)
    try:
        yield one
    finally:
        one.close()


def test_terminal_shows_steps_states_times_and_progress() -> None:
    with terminal(DONE, "--inputs", '{"x": 1}') as one:
        assert json.loads(one.rest()) == {"x": 1}
        assert one.process.returncode == 0
        assert "0/2 steps" in one.seen
        assert "\x1b[J" in one.seen, "it is drawn in place"
        last = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", one.seen.rpartition("\x1b[J")[2])
        assert re.search(r"✓ a +wait +[\d.]+ s\s+✓ b +finish +[\d.]+ s", last), last
        assert "hutch: demo completed in" in last


def test_approval_is_asked_for_at_the_terminal() -> None:
    steps = [step("a", "approve", {"message": "Ship it?"}), step("b", "finish", {"outputs": "$step.a"})]
    asks = document(steps, chain("a", "b"))
    with terminal(asks) as one:
        one.until("Approve it? [y]es, [n]o: ")
        assert "Step a asks: Ship it?" in one.seen
        os.write(one.our_end, b"y\n")
        assert json.loads(one.rest())["approved"] is True
        assert one.process.returncode == 0


def test_long_flow_is_abbreviated_on_a_small_terminal() -> None:
    many = [step(f"s{number}", "wait", {"seconds": 0}) for number in range(40)]
    with terminal(document(many)) as one:
        one.rest()
        assert one.process.returncode == 0
        assert "more" in one.seen
        assert "40/40 steps" in one.seen or "completed in" in one.seen
