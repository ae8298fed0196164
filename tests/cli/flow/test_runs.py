"""Tests of `hutch flow runs`, `logs` and `resume`, also after an orchestrator or a runtime is killed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.flows import chain, edge, flow, node
from tests.support.forked import REAL_RUNTIMES
from tests.support.network.counting import CountingApi
from tests.support.processes import TIMEOUT_SECONDS, Traces, descendants, hutch, start_hutch, wait_until


@pytest.fixture
def upstream() -> Iterator[CountingApi]:
    with CountingApi() as one:
        yield one


class FlowHome:
    """A home, a file with a flow, and an API on loopback."""

    def __init__(self, folder: Path, upstream: CountingApi) -> None:
        self.env = {"HUTCH_HOME": str(folder / "home"), "HUTCH_EGRESS_ALLOW": upstream.address}
        self.file = folder / "flow.json"
        ids = ("a", "b", "held", "d")
        nodes = [node(id, "http.get", **upstream.step(id)) for id in ids]
        nodes.append(node("end", "finish", outputs="$step.d.body.count"))
        self.file.write_text(json.dumps(flow(nodes, chain(*ids, "end"), name="deploy")))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return hutch("flow", *arguments, env=self.env)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command. Runtimes are real processes, so that tests can kill them."""
        env = {**self.env, **REAL_RUNTIMES}
        return start_hutch(["flow", *arguments], env=env, stdin=subprocess.DEVNULL)

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = json.loads(self.run("runs", "--json", *arguments).stdout)
        return runs


@pytest.fixture
def home(tmp_path: Path, upstream: CountingApi) -> FlowHome:
    return FlowHome(tmp_path, upstream)


def runtime_of(process: subprocess.Popen[bytes]) -> int:
    """Returns the process id of a run's runtime."""
    return next(each for each in descendants(process.pid) if b"serve" in command(each))


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_killed_orchestrator_leaves_a_run_that_is_resumed_without_repeating_finished_steps(
    home: FlowHome, upstream: CountingApi
) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "nightly") as process:
        upstream.wait_for_request("/held")
        with Traces(process.pid) as traces:
            process.kill()
            process.wait(TIMEOUT_SECONDS)
            assert [each for each in traces.remaining() if each.isdigit()] == []
    [run] = home.listed()
    assert (run["run_id"], run["flow"], run["state"], run["origin"]) == (
        "nightly",
        "deploy",
        "interrupted",
        "cli",
    )
    logs = home.run("logs", "nightly")
    assert "succeeded in" in logs.stdout
    assert "`hutch flow resume nightly` resumes it" in logs.stderr
    upstream.release("/held")
    resumed = home.run("resume", "nightly")
    assert (resumed.returncode, resumed.stdout) == (0, "1\n"), resumed.stderr
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}
    assert [each["state"] for each in home.listed()] == ["completed"]


def test_killed_runtime_leaves_a_run_that_is_resumed_without_repeating_finished_steps(
    home: FlowHome, upstream: CountingApi
) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "nightly") as process:
        upstream.wait_for_request("/held")
        os.kill(runtime_of(process), signal.SIGKILL)
        assert process.wait(TIMEOUT_SECONDS) == 4
    assert [each["state"] for each in home.listed()] == ["interrupted"]
    upstream.release("/held")
    again = home.run("run", str(home.file), "--run-id", "nightly", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["summary"]["outputs"] == 1
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}


def test_failed_run_is_resumed_from_the_step_that_failed(home: FlowHome, upstream: CountingApi) -> None:
    upstream.fail("/held", 1)
    assert home.run("run", str(home.file), "--run-id", "r").returncode == 1
    table = home.run("runs").stdout
    assert "failed (step_failed)" in table
    listed = hutch("runs", "list", env=home.env).stdout
    assert re.search("held: GET .*/held was answered with 500", listed)
    shown = hutch("runs", "show", "r", env=home.env).stdout
    assert ("held: " in shown, "state          failed" in shown, "status" in shown) == (True, True, False)
    # `flow run` with the id of an existing run starts nothing, so finished steps are not requested again.
    assert home.run("run", str(home.file), "--run-id", "r").returncode == 1
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 1}
    resumed = home.run("resume", "r", "--json")
    output = json.loads(resumed.stdout)
    assert (resumed.returncode, output["state"], output["run_id"]) == (0, "completed", "r")
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}
    # A completed run prints its outputs again.
    again = home.run("resume", "r")
    assert (again.returncode, again.stdout) == (0, "1\n")
    assert upstream.request_counts["/d"] == 1


def test_retry_repeats_a_step_and_all_later_steps_of_a_completed_run(
    home: FlowHome, upstream: CountingApi
) -> None:
    assert home.run("run", str(home.file), "--run-id", "r").stdout == "1\n"
    retried = home.run("retry", "r", "--from", "held")
    assert (retried.returncode, retried.stdout) == (0, "2\n"), retried.stderr
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 2}
    said = "retry from held: runs held, d, end again; keeps the outputs of a, b"
    assert retried.stderr.startswith(f"hutch: {said}\n")
    assert said in home.run("logs", "r").stdout
    for step, expected in (("hedl", "did you mean held?"), ("a/0", "did you mean a?")):
        wrong = home.run("retry", "r", "--from", step)
        assert (wrong.returncode, expected in wrong.stderr) == (2, True), wrong.stderr
    assert [each["state"] for each in home.listed()] == ["completed"]


def test_retry_of_an_unfinished_step_or_a_running_run_changes_nothing(
    home: FlowHome, upstream: CountingApi
) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        running = home.run("retry", "r", "--from", "a")
        assert "run: 'r' is running. `hutch flow cancel r` ends it." in running.stderr
        process.kill()
    refused = home.run("retry", "r", "--from", "held")
    assert "held has not finished in this run" in refused.stderr
    assert "`hutch flow resume r` continues the run" in refused.stderr
    assert upstream.request_counts == {"/a": 1, "/b": 1, "/held": 1}
    upstream.release("/held")
    # An interrupted run can be retried, too.
    assert home.run("retry", "r", "--from", "b").returncode == 0
    assert upstream.request_counts == {"/a": 1, "/b": 2, "/held": 2, "/d": 1}


def test_logs_show_inputs_and_outputs_of_steps(home: FlowHome, upstream: CountingApi) -> None:
    home.run("run", str(home.file), "--run-id", "r")
    plain = home.run("logs", "r").stdout
    assert '"count": 1' not in plain
    shown = home.run("logs", "r", "--values").stdout
    assert f'input   {{"url": "{upstream.url("/a")}"}}' in shown
    assert '"body": {"path": "/a", "count": 1}' in shown
    events = [json.loads(line) for line in home.run("logs", "r", "--values", "--json").stdout.splitlines()]
    records = {each["step_id"]: each for each in events if each["type"] == "record"}
    assert records["d"]["output"]["body"] == {"path": "/d", "count": 1}
    assert records["end"]["input"] == {"outputs": 1}


def test_cancelled_run_is_listed_and_resumed(home: FlowHome, upstream: CountingApi) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
    assert [each["state"] for each in home.listed()] == ["cancelled"]
    upstream.release("/held")
    assert home.run("resume", "r").returncode == 0


def test_run_is_cancelled_from_another_process(home: FlowHome, upstream: CountingApi) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        assert home.run("cancel", "r").returncode == 0
        process.wait(TIMEOUT_SECONDS)
    assert [each["state"] for each in home.listed()] == ["cancelled"]
    again = home.run("cancel", "r")
    assert again.returncode != 0
    assert "run: 'r' has ended: it is cancelled." in again.stderr


@pytest.mark.parametrize(("command", "state"), [("approve", "completed"), ("deny", "failed")])
def test_approval_is_answered_from_another_process(home: FlowHome, command: str, state: str) -> None:
    home.file.write_text(json.dumps(flow([node("ask", "approve", message="Deploy?")])))
    with home.start("run", str(home.file), "--run-id", "r", "--timeout", "0") as process:
        wait_until(lambda: "waits for approval: Deploy?" in home.run("logs", "r").stdout)
        assert home.listed()[0]["state"] == "waiting"
        runs = home.run("runs")
        assert "waiting for approval of ask" in runs.stdout
        assert "`hutch flow approve r ask`" in runs.stderr
        assert "for approval of ask" in hutch("runs", "list", env=home.env).stdout
        wrong = home.run(command, "r", "aks")
        assert "'aks' is not waiting for an approval; waiting: ask" in wrong.stderr
        assert home.run(command, "r", "ask", "--reason", "because").returncode == 0
        process.wait(TIMEOUT_SECONDS)
    assert [each["state"] for each in home.listed()] == [state]


def test_no_stored_flows_are_listed(home: FlowHome) -> None:
    assert json.loads(home.run("list", "--json").stdout) == []
    assert "there are no stored flows" in home.run("list").stderr


def test_running_run_cannot_be_resumed(home: FlowHome, upstream: CountingApi) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        refused = home.run("resume", "r")
        assert refused.returncode == 3
        assert "running in another process" in refused.stderr
        upstream.release("/held")
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert upstream.request_counts["/held"] == 1


def test_logs_follow_a_run_to_its_end(home: FlowHome, upstream: CountingApi) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        with home.start("logs", "r", "--follow", "--json") as logs:
            assert logs.stdout is not None
            first = json.loads(logs.stdout.readline())
            assert (first["number"], first["step_id"], first["state"]) == (1, "a", "started")
            upstream.release("/held")
            rest = [json.loads(line) for line in logs.stdout.read().splitlines()]
            assert logs.wait(TIMEOUT_SECONDS) == 0
        assert process.wait(TIMEOUT_SECONDS) == 0
    steps = [(each["step_id"], each["state"]) for each in rest if each["type"] == "step"]
    assert steps[-2:] == [("end", "started"), ("end", "succeeded")]
    plain = home.run("logs", "r")
    assert "started (http.get)" in plain.stdout
    assert plain.stderr == "hutch: r is completed\n"


def test_logs_that_follow_a_run_stop_when_its_process_is_killed(
    home: FlowHome, upstream: CountingApi
) -> None:
    upstream.hold("/held")
    with home.start("run", str(home.file), "--run-id", "r") as process:
        upstream.wait_for_request("/held")
        with home.start("logs", "r", "--follow") as logs:
            assert logs.stdout is not None
            logs.stdout.readline()
            pid = runtime_of(process)
            process.kill()
            os.kill(pid, signal.SIGKILL)
            _, stderr = logs.communicate(timeout=TIMEOUT_SECONDS)
    assert stderr.decode().startswith("hutch: r is interrupted")


def test_resumed_run_uses_the_options_of_the_original_run(
    home: FlowHome, upstream: CountingApi, tmp_path: Path
) -> None:
    inner = flow([node("x", "http.get", **upstream.step("x"))])
    (tmp_path / "inner.json").write_text(json.dumps(inner))
    nodes = [node("sub", "flow.run", flow="inner.json"), node("bad", "http.get", **upstream.step("bad"))]
    home.file.write_text(json.dumps(flow(nodes, [edge("sub", "bad")])))
    upstream.fail("/bad", 1)
    # `flow resume` has to use the options of the `flow run` that started the run, because only these options
    # allow egress.
    home.env["HUTCH_EGRESS_ALLOW"] = ""
    allow = ("--egress-allow", upstream.address)
    assert home.run("run", str(home.file), "--run-id", "r", *allow).returncode == 1
    assert home.run("resume", "r").returncode == 0
    assert upstream.request_counts == {"/x": 1, "/bad": 2}


def test_unknown_runs_and_an_empty_store_are_reported(home: FlowHome) -> None:
    assert "there are no runs" in home.run("runs").stderr
    assert home.listed() == []
    for name in ("logs", "resume"):
        refused = home.run(name, "unknown")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "there is no 'unknown'" in refused.stderr
    assert "there is no 'ada'" in home.run("runs", "--user", "ada").stderr


def test_run_of_a_user_is_listed_for_that_user(home: FlowHome) -> None:
    assert hutch("user", "add", "ada", env=home.env).returncode == 0
    home.file.write_text(json.dumps(flow([node("w", "wait", seconds=0)])))
    assert home.run("run", str(home.file), "--run-id", "hers", "--user", "ada").returncode == 0
    assert home.run("run", str(home.file), "--run-id", "ours").returncode == 0
    assert [each["run_id"] for each in home.listed("--user", "ada")] == ["hers"]
    assert [each["run_id"] for each in home.listed()] == ["ours", "hers"]
    wait_until(lambda: "ada" in home.run("runs").stdout)


# --- encryption ---


def dump(home: FlowHome) -> list[str]:
    """Returns the database's content as SQL."""
    database = sqlite3.connect(Path(home.env["HUTCH_HOME"]) / "hutch.db")
    try:
        return [*database.iterdump()]
    finally:
        database.close()


def test_killed_run_leaves_no_plaintext_and_is_resumed_after_a_rotation(
    home: FlowHome, upstream: CountingApi
) -> None:
    folder = Path(home.env["HUTCH_HOME"])
    nodes = [
        node("a", "dsl.emit", text="$input.secret"),
        node("held", "http.get", **{**upstream.step("held"), "headers": {"X-Key": "S3CRET"}}),
        node("end", "finish", outputs="$step.a.text"),
    ]
    home.file.write_text(json.dumps(flow(nodes, chain("a", "held", "end"), name="sealed")))
    upstream.hold("/held")
    given = ("--run-id", "r", "--inputs", json.dumps({"secret": "S3CRET"}))
    with home.start("run", str(home.file), *given) as process:
        upstream.wait_for_request("/held")
        process.kill()
        process.wait(TIMEOUT_SECONDS)
    assert (folder / "master.key").stat().st_mode & 0o777 == 0o600
    # The secret must not be in SQLite's write-ahead log either. The log file exists while the runtime has the
    # database open.
    assert b"S3CRET" not in (folder / "hutch.db").read_bytes()
    with contextlib.suppress(FileNotFoundError):
        assert b"S3CRET" not in (folder / "hutch.db-wal").read_bytes()
    upstream.release("/held")
    rotated = hutch("vault", "rotate", "--master", env=home.env)
    assert rotated.returncode == 0, rotated.stderr
    assert "flows: a new key for new data; older keys still in use: 1" in rotated.stderr
    # Remove the older master key, which is not needed after the rotation.
    keys = folder / "master.key"
    keys.write_text(keys.read_text().splitlines()[0] + "\n")
    resumed = home.run("resume", "r")
    assert (resumed.returncode, resumed.stdout) == (0, '"S3CRET"\n'), resumed.stderr
    assert "started (http.get)" in home.run("logs", "r").stdout
    assert "S3CRET" not in str(dump(home))


def test_wrong_master_key_is_reported_and_changes_nothing(home: FlowHome) -> None:
    home.file.write_text(json.dumps(flow([node("e", "finish", outputs=1)])))
    assert home.run("run", str(home.file), "--run-id", "r").returncode == 0
    before = dump(home)
    home.env["HUTCH_MASTER_KEY"] = base64.b64encode(b"w" * 32).decode()
    for arguments in (("run", str(home.file)), ("run", str(home.file), "--run-id", "r")):
        done = home.run(*arguments)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "The master key is not the one that this database is encrypted with" in done.stderr
        assert "Put that key into HUTCH_MASTER_KEY or HUTCH_HOME/master.key" in done.stderr
        assert "Traceback" not in done.stderr
        assert "resumes it" not in done.stderr
    for name in ("logs", "resume"):
        done = home.run(name, "r")
        assert (done.returncode, done.stdout) == (1, "")
        assert "The master key is not the one" in done.stderr
    assert [each["run_id"] for each in home.listed()] == ["r"]
    assert dump(home) == before
    del home.env["HUTCH_MASTER_KEY"]
    (Path(home.env["HUTCH_HOME"]) / "master.key").unlink()
    done = home.run("run", str(home.file))
    assert (done.returncode, "There is no master key" in done.stderr) == (4, True)
    assert not (Path(home.env["HUTCH_HOME"]) / "master.key").exists()
    assert dump(home) == before
