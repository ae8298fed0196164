"""Exit codes of `hutch flow run` (section 11) and Ctrl-C (section 10)."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path

import pytest
from tests.contract.rep.runtimes import command
from tests.protocols.rep.flows import document, step
from tests.support.processes import TIMEOUT_SECONDS, Traces, hutch, start_hutch, stop_process


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def arguments(kind: str, fault: str, *extra: str) -> list[str]:
    Path("flow.json").write_text(json.dumps(document([step("a", kind)])))
    return ["flow", "run", "flow.json", "--executor", shlex.join(command(fault)), *extra]


@pytest.mark.parametrize(
    ("fault", "kind", "extra", "exit_code"),
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
def test_exit_code(fault: str, kind: str, extra: list[str], exit_code: int) -> None:
    done = hutch(*arguments(kind, fault, *extra))
    assert done.returncode == exit_code, done.stderr


def test_ctrl_c_cancels_waits_five_seconds_and_then_kills() -> None:
    with start_hutch(arguments("test.step", "ignores-cancel"), text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "hutch: a started\n"
            with Traces(process.pid) as traces:
                interrupted = time.monotonic()
                process.send_signal(signal.SIGINT)
                assert process.wait(TIMEOUT_SECONDS) == 130
                assert time.monotonic() - interrupted > 4.5
                assert traces.remaining() == []
        finally:
            stop_process(process)
