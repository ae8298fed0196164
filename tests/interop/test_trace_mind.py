"""Interoperability with PyPI's `trace-mind`: TraceMind's orchestrator with Hutch's runtime, and Hutch's
orchestrator with TraceMind's runtime.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import python, tm
from tests.protocols.rep.flows import chain, document, step
from tests.protocols.rep.manifests import manifest_entry
from tests.support.processes import hutch

from hutch.protocols.rep.ir.parse import parse_flow

# TraceMind starts only Python files as executors, so this Python file starts Hutch's runtime. The file
# removes PYTHONPATH, because it contains TraceMind.
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
    """A folder with two flows, a manifest of the flows, and an executor that starts Hutch's runtime."""
    monkeypatch.setenv("HOME", str(tmp_path))
    entries = []
    for flow in (BOTH, FAILS):
        name = f"{flow['flow']['name']}.json"
        (tmp_path / name).write_text(json.dumps(flow))
        entries.append(manifest_entry(parse_flow(flow), name))
    (tmp_path / "manifest.json").write_text(json.dumps(entries))
    (tmp_path / "shim.py").write_text(SHIM)
    return tmp_path


def mock(folder: Path) -> str:
    return f"{sys.executable} {folder / 'tm/executors/mock_process_engine.py'}"


# --- TraceMind's orchestrator, Hutch's runtime ---


def run_with_tm(folder: Path, project: Path, flow: str, inputs: dict[str, Any]) -> dict[str, Any]:
    engine = ("--engine", "proc", "--executor-path", "shim.py")
    arguments = ("--manifest", "manifest.json", "--flow", flow, "--inputs", json.dumps(inputs))
    done = tm(folder, *engine, "runtime", "run", *arguments, cwd=project)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_trace_mind_command_runs_a_flow_on_our_runtime(old: Path, project: Path) -> None:
    report = run_with_tm(old, project, "both", {"n": 21})
    assert (report["status"], report["summary"]["outputs"]) == ("completed", {"tell": {"doubled": 42}})
    # TraceMind's command reports only the events of its last poll. The last poll may have returned no events.
    assert {event["state"] for event in report["events"] if event["type"] == "step"} <= {
        "started",
        "succeeded",
    }


def test_trace_mind_command_reports_a_failed_flow_on_our_runtime(old: Path, project: Path) -> None:
    report = run_with_tm(old, project, "fails", {})
    assert report["status"] == "failed"
    assert report["summary"]["error"]["code"] == 2001
    assert report["summary"]["error"]["data"]["step_id"] == "throws"


def test_their_latest_engine_runs_a_flow_on_our_runtime(new: Path, project: Path) -> None:
    done = python(new, "-c", ENGINE, cwd=project)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["status"], report["summary"]["outputs"]) == ("completed", {"tell": {"doubled": 40}})


# --- Hutch's orchestrator, TraceMind's runtime ---


@pytest.fixture(scope="module")
def compiled(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest that TraceMind's compiler has written."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "monitor.wdl").write_text(WDL)
    (folder / "monitor.pdl").write_text(PDL)
    # TraceMind's compiler validates its output with this schema. The schema is missing in the wheel of
    # TraceMind.
    schema = old / "docs/ir/v0.1/schema.json"
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.write_text("{}")
    done = tm(old, "dsl", "compile", str(folder), "--emit-ir", "--out", str(folder / "out"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out" / "manifest.json"


@pytest.mark.parametrize("which", ["old", "new"])
def test_hutch_command_runs_their_compiled_flow_on_their_runtime(
    request: pytest.FixtureRequest, compiled: Path, project: Path, which: str
) -> None:
    arguments = ("--manifest", str(compiled), "--flow", "monitor")
    inputs = ("--inputs", '{"endpoint": "opc.tcp://plant", "ids": ["a", "b"]}')
    executor = mock(request.getfixturevalue(which))
    done = hutch("flow", "run", *arguments, *inputs, "--executor", executor, "--json", cwd=project)
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert (report["status"], report["runtime"]) == (
        "completed",
        {"engine": "mock_process_engine", "version": "0.1.0"},
    )
    assert [event["message"] for event in report["events"]] == ["run started", "run completed"]


def test_their_runtime_lacks_our_step_kinds(old: Path, project: Path) -> None:
    done = hutch("flow", "run", "both.json", "--inputs", '{"n": 1}', "--executor", mock(old), cwd=project)
    assert done.returncode == 3
    assert "has no steps of the kind code.run" in done.stderr
    cache = project / ".trace_mind/runtime_capabilities/mock_process_engine.json"
    assert json.loads(cache.read_text())["step_kinds"] == [
        "opcua.read",
        "opcua.write",
        "policy.apply",
        "dsl.emit",
    ]


def test_their_project_configuration_is_used(old: Path, compiled: Path, project: Path) -> None:
    executor = old / "tm/executors/mock_process_engine.py"
    (project / "tm/config").mkdir(parents=True)
    (project / "tm/config/runtime.yaml").write_text(
        "runtime:\n  engine: proc\n  language: python\n  plugins_language: python\n"
        f"  executor_path: {executor}\n"
    )
    assert hutch("trust", "--yes", cwd=project).returncode == 0
    arguments = ("--manifest", str(compiled), "--inputs", '{"endpoint": "x", "ids": []}')
    done = hutch("flow", "run", *arguments, "--json", cwd=project)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["runtime"]["engine"] == "proc"
