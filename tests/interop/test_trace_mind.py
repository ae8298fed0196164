"""With PyPI's `trace-mind`: its orchestrator on our runtime, and ours on its runtime, compiled by it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.flows import chain, document, step
from tests.interop.conftest import python, tm
from tests.processes import hutch

from hutch.doors.rep import flow as flows
from hutch.doors.rep.manifest import entry_for

# What its executor is: a file of Python. Ours has nothing to do with what it imports.
SHIM = """import os, sys
os.environ.pop("PYTHONPATH")
os.execv(sys.executable, [sys.executable, "-P", "-m", "hutch", "runtime", "serve"])
"""
ENGINE = """import json
from pathlib import Path
from tm.runtime.ir_runner import run_flow
from tm.runtime.process_engine import ProcessEngine, ProcessEngineOptions
options = ProcessEngineOptions(executor_path=Path("shim.py"), required_steps=["code.run"])
done = run_flow("both", manifest_path=Path("manifest.json"), inputs={"n": 20}, engine=ProcessEngine(options))
print(json.dumps({"status": done.status, "summary": done.summary, "events": done.events}))
"""
BOTH = document(
    [
        step("double", "code.run", {"code": "input * 2", "input": "$input.n"}),
        step("tell", "dsl.emit", {"doubled": "$step.double"}),
    ],
    chain("double", "tell"),
    name="both",
    inputs={"n": {"type": "int"}},
)
FAILS = document([step("throws", "code.run", {"code": 'throw new Error("as asked")'})], name="fails")
WDL = """version: dsl/v0
workflow: monitor
inputs:
  endpoint: string
  ids: list<string>
steps:
  - read(opcua.read):
      endpoint: $input.endpoint
      node_ids: $input.ids
  - decide(policy.apply):
      policy: monitor
      values: $step.read.values
  - when $step.decide.action in ["write"]:
      write(opcua.write):
        endpoint: $input.endpoint
outputs:
  action: $step.decide.action
"""
PDL = """version: pdl/0
arms:
  default:
    threshold: 75
evaluate:
  action := "write"
emit:
  action: action
"""


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two flows with a manifest, and our runtime as an executor."""
    monkeypatch.setenv("HOME", str(tmp_path))
    entries = []
    for each in (BOTH, FAILS):
        name = f"{each['flow']['name']}.json"
        (tmp_path / name).write_text(json.dumps(each))
        entries.append(entry_for(flows.read(each), name))
    (tmp_path / "manifest.json").write_text(json.dumps(entries))
    (tmp_path / "shim.py").write_text(SHIM)
    return tmp_path


def mock(folder: Path) -> str:
    return f"{sys.executable} {folder / 'tm/executors/mock_process_engine.py'}"


# --- their orchestrator, our runtime ---


def theirs_runs(folder: Path, project: Path, flow: str, inputs: dict[str, Any]) -> dict[str, Any]:
    engine = ("--engine", "proc", "--executor-path", "shim.py")
    asked = ("--manifest", "manifest.json", "--flow", flow, "--inputs", json.dumps(inputs))
    done = tm(folder, *engine, "runtime", "run", *asked, cwd=project)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_their_command_runs_a_flow_on_our_runtime(old: Path, project: Path) -> None:
    found = theirs_runs(old, project, "both", {"n": 21})
    assert (found["status"], found["summary"]["outputs"]) == ("completed", {"tell": {"doubled": 42}})
    # It keeps the events of its last poll alone, and that may have none.
    assert {each["state"] for each in found["events"] if each["type"] == "step"} <= {"started", "succeeded"}


def test_their_command_sees_a_flow_fail_on_our_runtime(old: Path, project: Path) -> None:
    found = theirs_runs(old, project, "fails", {})
    assert found["status"] == "failed"
    assert found["summary"]["error"]["code"] == 2001
    assert found["summary"]["error"]["data"]["step_id"] == "throws"


def test_their_latest_engine_runs_a_flow_on_our_runtime(new: Path, project: Path) -> None:
    done = python(new, "-c", ENGINE, cwd=project)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["status"], found["summary"]["outputs"]) == ("completed", {"tell": {"doubled": 40}})


# --- our orchestrator, their runtime ---


@pytest.fixture(scope="module")
def compiled(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest that their compiler wrote."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "monitor.wdl").write_text(WDL)
    (folder / "monitor.pdl").write_text(PDL)
    # Their wheel lacks this file; what is in it is for them to check with.
    schema = old / "docs/ir/v0.1/schema.json"
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.write_text("{}")
    done = tm(old, "dsl", "compile", str(folder), "--emit-ir", "--out", str(folder / "out"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out" / "manifest.json"


@pytest.mark.parametrize("which", ["old", "new"])
def test_our_command_runs_what_they_compiled_on_their_runtime(
    request: pytest.FixtureRequest, compiled: Path, project: Path, which: str
) -> None:
    asked = ("--manifest", str(compiled), "--flow", "monitor")
    inputs = ("--inputs", '{"endpoint": "opc.tcp://plant", "ids": ["a", "b"]}')
    executor = mock(request.getfixturevalue(which))
    done = hutch("flow", "run", *asked, *inputs, "--executor", executor, "--json", cwd=project)
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert (found["status"], found["runtime"]) == (
        "completed",
        {"engine": "mock_process_engine", "version": "0.1.0"},
    )
    assert [each["message"] for each in found["events"]] == ["run started", "run completed"]


def test_their_runtime_lacks_kinds_of_ours(old: Path, project: Path) -> None:
    done = hutch("flow", "run", "both.json", "--inputs", '{"n": 1}', "--executor", mock(old), cwd=project)
    assert done.returncode == 3
    assert "has no steps of the kind code.run" in done.stderr
    kept = project / ".trace_mind/runtime_capabilities/mock_process_engine.json"
    assert json.loads(kept.read_text())["step_kinds"] == [
        "opcua.read",
        "opcua.write",
        "policy.apply",
        "dsl.emit",
    ]


def test_their_configuration_of_a_project_is_ours_too(old: Path, compiled: Path, project: Path) -> None:
    executor = old / "tm/executors/mock_process_engine.py"
    (project / "tm/config").mkdir(parents=True)
    (project / "tm/config/runtime.yaml").write_text(
        "runtime:\n  engine: proc\n  language: python\n  plugins_language: python\n"
        f"  executor_path: {executor}\n"
    )
    asked = ("--manifest", str(compiled), "--inputs", '{"endpoint": "x", "ids": []}')
    done = hutch("flow", "run", *asked, "--json", cwd=project)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["runtime"]["engine"] == "proc"
