"""`hutch flow runs`, `logs` and `resume`, and what is left when a run's orchestrator or runtime is killed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.counting import Counting
from tests.flows import chain, edge, flow, node
from tests.processes import PATIENCE, Traces, descendants, hutch, started, until


@pytest.fixture
def upstream() -> Iterator[Counting]:
    with Counting() as one:
        yield one


class Place:
    """A home, a flow in a file, and an API on loopback."""

    def __init__(self, folder: Path, upstream: Counting) -> None:
        self.env = {"HUTCH_HOME": str(folder / "home"), "HUTCH_EGRESS_ALLOW": upstream.address}
        self.file = folder / "flow.json"
        ids = ("a", "b", "held", "d")
        nodes = [node(id, "http.get", **upstream.step(id)) for id in ids]
        nodes.append(node("end", "finish", outputs="$step.d.body.count"))
        self.file.write_text(json.dumps(flow(nodes, chain(*ids, "end"), name="deploy")))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return hutch("flow", *arguments, env=self.env)

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        return started(["flow", *arguments], env=self.env, stdin=subprocess.DEVNULL)

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = json.loads(self.run("runs", "--json", *arguments).stdout)
        return told


@pytest.fixture
def place(tmp_path: Path, upstream: Counting) -> Place:
    return Place(tmp_path, upstream)


def runtime_of(process: subprocess.Popen[bytes]) -> int:
    """The process of its runtime."""
    return next(each for each in descendants(process.pid) if b"serve" in command(each))


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_killed_orchestrator_leaves_a_run_that_is_resumed_without_repeating_finished_steps(
    place: Place, upstream: Counting
) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "nightly") as process:
        upstream.until_asked("/held")
        with Traces(process.pid) as traces:
            process.kill()
            process.wait(PATIENCE)
            assert [each for each in traces.remaining() if each.isdigit()] == []
    [run] = place.listed()
    assert (run["run_id"], run["flow"], run["state"], run["origin"]) == (
        "nightly",
        "deploy",
        "interrupted",
        "cli",
    )
    logs = place.run("logs", "nightly")
    assert "succeeded in" in logs.stdout
    assert "`hutch flow resume nightly` goes on with it" in logs.stderr
    upstream.let_go("/held")
    resumed = place.run("resume", "nightly")
    assert (resumed.returncode, resumed.stdout) == (0, "1\n"), resumed.stderr
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}
    assert [each["state"] for each in place.listed()] == ["completed"]


def test_killed_runtime_leaves_a_run_that_is_resumed_without_repeating_finished_steps(
    place: Place, upstream: Counting
) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "nightly") as process:
        upstream.until_asked("/held")
        os.kill(runtime_of(process), signal.SIGKILL)
        assert process.wait(PATIENCE) == 4
    assert [each["state"] for each in place.listed()] == ["interrupted"]
    upstream.let_go("/held")
    again = place.run("run", str(place.file), "--run-id", "nightly", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["summary"]["outputs"] == 1
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}


def test_failed_run_is_resumed_from_the_step_that_failed(place: Place, upstream: Counting) -> None:
    upstream.fail("/held", 1)
    assert place.run("run", str(place.file), "--run-id", "r").returncode == 1
    table = place.run("runs").stdout
    assert "failed (step_failed)" in table
    # The same run, not a second one.
    assert place.run("run", str(place.file), "--run-id", "r").returncode == 1
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 1}
    resumed = place.run("resume", "r", "--json")
    told = json.loads(resumed.stdout)
    assert (resumed.returncode, told["status"], told["run_id"]) == (0, "completed", "r")
    assert upstream.asked == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}
    # A complete run gives its outputs again.
    again = place.run("resume", "r")
    assert (again.returncode, again.stdout) == (0, "1\n")
    assert upstream.asked["/d"] == 1


def test_cancelled_run_is_kept_and_resumed(place: Place, upstream: Counting) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "r") as process:
        upstream.until_asked("/held")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert [each["state"] for each in place.listed()] == ["cancelled"]
    upstream.let_go("/held")
    assert place.run("resume", "r").returncode == 0


def test_run_that_is_under_way_cannot_be_resumed(place: Place, upstream: Counting) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "r") as process:
        upstream.until_asked("/held")
        refused = place.run("resume", "r")
        assert refused.returncode == 3
        assert "under way in another process" in refused.stderr
        upstream.let_go("/held")
        assert process.wait(PATIENCE) == 0
    assert upstream.asked["/held"] == 1


def test_logs_follow_a_run_to_its_end(place: Place, upstream: Counting) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "r") as process:
        upstream.until_asked("/held")
        with place.begin("logs", "r", "--follow", "--json") as logs:
            assert logs.stdout is not None
            first = json.loads(logs.stdout.readline())
            assert (first["number"], first["step_id"], first["state"]) == (1, "a", "started")
            upstream.let_go("/held")
            rest = [json.loads(line) for line in logs.stdout.read().splitlines()]
            assert logs.wait(PATIENCE) == 0
        assert process.wait(PATIENCE) == 0
    steps = [(each["step_id"], each["state"]) for each in rest if each["type"] == "step"]
    assert steps[-2:] == [("end", "started"), ("end", "succeeded")]
    plain = place.run("logs", "r")
    assert "started (http.get)" in plain.stdout
    assert plain.stderr == "hutch: r is completed\n"


def test_logs_that_follow_a_run_stop_when_its_process_is_killed(place: Place, upstream: Counting) -> None:
    upstream.hold("/held")
    with place.begin("run", str(place.file), "--run-id", "r") as process:
        upstream.until_asked("/held")
        with place.begin("logs", "r", "--follow") as logs:
            assert logs.stdout is not None
            logs.stdout.readline()
            pid = runtime_of(process)
            process.kill()
            os.kill(pid, signal.SIGKILL)
            _, said = logs.communicate(timeout=PATIENCE)
    assert said.decode().startswith("hutch: r is interrupted")


def test_options_of_a_run_are_those_of_its_resumption(
    place: Place, upstream: Counting, tmp_path: Path
) -> None:
    inner = flow([node("x", "http.get", **upstream.step("x"))])
    (tmp_path / "inner.json").write_text(json.dumps(inner))
    nodes = [node("sub", "flow.run", flow="inner.json"), node("bad", "http.get", **upstream.step("bad"))]
    place.file.write_text(json.dumps(flow(nodes, [edge("sub", "bad")])))
    upstream.fail("/bad", 1)
    # Nothing may be reached but what the run says.
    place.env["HUTCH_EGRESS_ALLOW"] = ""
    allow = ("--egress-allow", upstream.address)
    assert place.run("run", str(place.file), "--run-id", "r", *allow).returncode == 1
    assert place.run("resume", "r").returncode == 0
    assert upstream.asked == {"/x": 1, "/bad": 2}


def test_unknown_runs_and_an_empty_store_are_told(place: Place) -> None:
    assert "no run of a flow is kept" in place.run("runs").stderr
    assert place.listed() == []
    for name in ("logs", "resume"):
        refused = place.run(name, "nobody")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "there is no 'nobody'" in refused.stderr
    assert "there is no 'ada'" in place.run("runs", "--user", "ada").stderr


def test_run_of_a_user_is_listed_as_theirs(place: Place) -> None:
    assert hutch("user", "add", "ada", env=place.env).returncode == 0
    place.file.write_text(json.dumps(flow([node("w", "wait", seconds=0)])))
    assert place.run("run", str(place.file), "--run-id", "hers", "--user", "ada").returncode == 0
    assert place.run("run", str(place.file), "--run-id", "ours").returncode == 0
    assert [each["run_id"] for each in place.listed("--user", "ada")] == ["hers"]
    assert [each["run_id"] for each in place.listed()] == ["ours", "hers"]
    until(lambda: "ada" in place.run("runs").stdout)


# --- what is written down is sealed ---


def dump(place: Place) -> list[str]:
    """All that is in the database."""
    database = sqlite3.connect(Path(place.env["HUTCH_HOME"]) / "hutch.db")
    try:
        return [*database.iterdump()]
    finally:
        database.close()


def test_killed_run_leaves_nothing_to_read_and_is_resumed_after_a_rotation(
    place: Place, upstream: Counting
) -> None:
    home = Path(place.env["HUTCH_HOME"])
    nodes = [
        node("a", "dsl.emit", said="$input.secret"),
        node("held", "http.get", **{**upstream.step("held"), "headers": {"X-Key": "S3CRET"}}),
        node("end", "finish", outputs="$step.a.said"),
    ]
    place.file.write_text(json.dumps(flow(nodes, chain("a", "held", "end"), name="sealed")))
    upstream.hold("/held")
    given = ("--run-id", "r", "--inputs", json.dumps({"secret": "S3CRET"}))
    with place.begin("run", str(place.file), *given) as process:
        upstream.until_asked("/held")
        process.kill()
        process.wait(PATIENCE)
    assert (home / "master.key").stat().st_mode & 0o777 == 0o600
    # Also in the log that SQLite writes ahead, which is there until the runtime has closed the file too.
    assert b"S3CRET" not in (home / "hutch.db").read_bytes()
    with contextlib.suppress(FileNotFoundError):
        assert b"S3CRET" not in (home / "hutch.db-wal").read_bytes()
    upstream.let_go("/held")
    rotated = hutch("vault", "rotate", "--master", env=place.env)
    assert rotated.returncode == 0, rotated.stderr
    assert "flows: a new key for what comes; 1 older for what is there" in rotated.stderr
    # The older master key is not needed any more.
    keys = home / "master.key"
    keys.write_text(keys.read_text().splitlines()[0] + "\n")
    resumed = place.run("resume", "r")
    assert (resumed.returncode, resumed.stdout) == (0, '"S3CRET"\n'), resumed.stderr
    assert "started (http.get)" in place.run("logs", "r").stdout
    assert "S3CRET" not in str(dump(place))


def test_wrong_master_key_is_told_and_changes_nothing(place: Place) -> None:
    place.file.write_text(json.dumps(flow([node("e", "finish", outputs=1)])))
    assert place.run("run", str(place.file), "--run-id", "r").returncode == 0
    before = dump(place)
    place.env["HUTCH_MASTER_KEY"] = base64.b64encode(b"w" * 32).decode()
    for arguments in (("run", str(place.file)), ("run", str(place.file), "--run-id", "r")):
        done = place.run(*arguments)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "The master key is not the one that this database is sealed with" in done.stderr
        assert "Give it that key, in HUTCH_MASTER_KEY or in HUTCH_HOME/master.key" in done.stderr
        assert "Traceback" not in done.stderr
        assert "goes on with it" not in done.stderr
    for name in ("logs", "resume"):
        done = place.run(name, "r")
        assert (done.returncode, done.stdout) == (1, "")
        assert "The master key is not the one" in done.stderr
    assert [each["run_id"] for each in place.listed()] == ["r"]
    assert dump(place) == before
    del place.env["HUTCH_MASTER_KEY"]
    (Path(place.env["HUTCH_HOME"]) / "master.key").unlink()
    done = place.run("run", str(place.file))
    assert (done.returncode, "There is no master key" in done.stderr) == (4, True)
    assert not (Path(place.env["HUTCH_HOME"]) / "master.key").exists()
    assert dump(place) == before
