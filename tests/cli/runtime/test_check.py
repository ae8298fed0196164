"""`hutch runtime check`: report and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.contract.rep.runtimes import FILE
from tests.protocols.rep.flows import document, step
from tests.support.processes import hutch

FAULTY = (sys.executable, "-I", "-S", str(FILE))


def test_failed_required_check_exits_with_1() -> None:
    done = hutch("runtime", "check", "--timeout", "5", *FAULTY, "exits")
    assert done.returncode == 1
    assert (
        "✗ answers Runtime.Capabilities (5.1)\n      Capabilities: it ended with exit code 0" in done.stdout
    )
    assert done.stdout.endswith("FAIL: required 0/1, recommended 0/0\n")


def test_report_as_json() -> None:
    done = hutch("runtime", "check", "--json", *FAULTY, "garbage")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["passed"] is False
    assert report["command"] == [*FAULTY, "garbage"]
    [only] = report["checks"]
    assert (only["name"], only["outcome"], only["required"]) == (
        "answers Runtime.Capabilities",
        "failed",
        True,
    )
    assert "Welcome to the runtime!" in only["detail"]


def test_invalid_flow_is_reported_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps({**document([step("a")]), "version": "3"}))
    done = hutch("runtime", "check", "--flow", str(tmp_path / "flow.json"), "/no/such/program")
    assert done.returncode == 2
    assert 'version: expected "1.0.0"' in done.stderr
