"""The exit codes of the command, each with a runtime for it (section 11), and Ctrl-C (section 10)."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path

import pytest
from tests.contract_proc.runtimes import command
from tests.doors.rep.flows import document, step
from tests.processes import PATIENCE, Traces, end, hutch, started


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def arguments(kind: str, fault: str, *more: str) -> list[str]:
    Path("flow.json").write_text(json.dumps(document([step("a", kind)])))
    return ["flow", "run", "flow.json", "--executor", shlex.join(command(fault)), *more]


@pytest.mark.parametrize(
    ("fault", "kind", "more", "exit_code"),
    [
        ("", "test.step", [], 0),
        ("step-fails", "test.step", [], 1),
        ("", "", [], 2),
        ("", "no.such.kind", [], 3),
        ("refuses-1001", "test.step", [], 3),
        ("half-a-line", "test.step", [], 4),
        ("never-ends", "test.step", ["--timeout", "0.5"], 4),
    ],
)
def test_exit_code(fault: str, kind: str, more: list[str], exit_code: int) -> None:
    done = hutch(*arguments(kind, fault, *more))
    assert done.returncode == exit_code, done.stderr


def test_ctrl_c_cancels_waits_five_seconds_and_then_kills() -> None:
    with started(arguments("test.step", "ignores-cancel"), text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "hutch: a started\n"
            with Traces(process.pid) as traces:
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 130
                assert time.monotonic() - began > 4.5
                assert traces.remaining() == []
        finally:
            end(process)
