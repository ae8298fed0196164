"""`hutch flow validate`, `hutch flow show` and `hutch init`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.flows import chain, compiled, document, edge, step
from tests.processes import hutch

from hutch.doors.rep.flow import read
from hutch.doors.rep.manifest import entry_for

GREET = Path(__file__).parents[2] / "examples" / "flows" / "greet.yaml"
GOOD = document(
    [step("get", "http.get", {"url": "$input.url"}), step("end", "finish")],
    chain("get", "end"),
    inputs={"url": {"type": "string"}},
)
BAD = document([step("a", retries=-1), step("b")], [edge("a", "b"), edge("b", "c")])


def write(folder: Path, value: dict[str, Any], name: str = "flow.json") -> str:
    (folder / name).write_text(json.dumps(value))
    return name


def manifest(folder: Path, *documents: dict[str, Any]) -> str:
    entries = []
    for value in documents:
        name = write(folder, value, f"{value['flow']['name']}.ir.json")
        entries.append(entry_for(read(value), name))
    (folder / "manifest.json").write_text(json.dumps(entries))
    return "manifest.json"


def test_good_flow_is_ok(tmp_path: Path) -> None:
    done = hutch("flow", "validate", write(tmp_path, GOOD), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "flow.json: ok: demo, 2 steps (http.get)\n", "")


def test_all_problems_of_a_bad_flow_are_printed(tmp_path: Path) -> None:
    done = hutch("flow", "validate", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "hutch: 2 problems in flow.json\n")
    assert done.stdout.splitlines() == [
        "flow.json: graph.nodes[0].retry.max: expected an integer ≥ 0, got the number -1",
        'flow.json: graph.edges[1].to: there is no step "c"',
    ]


def test_problems_are_json_if_wanted(tmp_path: Path) -> None:
    done = hutch("flow", "validate", "--json", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)
    assert (told["ok"], told["file"]) == (False, "flow.json")
    assert told["problems"][1] == {"path": "graph.edges[1].to", "message": 'there is no step "c"'}
    done = hutch("flow", "validate", "--json", write(tmp_path, GOOD), cwd=tmp_path)
    assert json.loads(done.stdout) == {
        "ok": True,
        "file": "flow.json",
        "problems": [],
        "warnings": [],
        "flow": "demo",
        "steps": 2,
        "edges": 1,
        "step_kinds": ["http.get"],
    }


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text("{")
    done = hutch("flow", "validate", "flow.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("flow.json: expected JSON: line 1, column 2: ")
    assert hutch("flow", "validate", "gone.json", cwd=tmp_path).returncode == 2


def test_all_flows_of_a_manifest_are_checked(tmp_path: Path) -> None:
    file = manifest(tmp_path, GOOD, {**compiled(), "flow": {"name": "other", "timeout_ms": 0}})
    done = hutch("flow", "validate", "--manifest", file, cwd=tmp_path)
    assert done.returncode == 0
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == [
        "demo.ir.json: ok: demo, 2 steps",
        "other.ir.json: ok: other, 5 steps",
    ]
    write(tmp_path, {**BAD, "flow": {"name": "other", "timeout_ms": 0}}, "other.ir.json")
    done = hutch("flow", "validate", "--manifest", file, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], [each["ok"] for each in told["flows"]]) == (2, False, [True, False])
    assert hutch("flow", "validate", "--manifest", file, "--flow", "demo", cwd=tmp_path).returncode == 0
    assert hutch("flow", "validate", "--manifest", file, "--flow", "nobody", cwd=tmp_path).returncode == 2


def test_what_our_own_runtime_would_refuse_is_a_warning(tmp_path: Path) -> None:
    flow = document(
        [
            step("a", "htp.get"),
            step("b", "http.get", {"uri": "x"}),
            step("c", "shell.run", {"command": "ls"}),
            step("d", "wait", {"seconds": "soon"}),
            step("e", "wait", {"seconds": "3"}),
            step("f", "wait", {"seconds": "$input.seconds"}),
        ]
    )
    done = hutch("flow", "validate", write(tmp_path, flow), cwd=tmp_path)
    assert done.returncode == 0
    assert (
        'flow.json: graph.nodes[0].type: our runtime has no kind "htp.get"; did you mean http.get?'
        in done.stderr
    )
    assert "graph.nodes[1].with.ur" in done.stderr
    assert "graph.nodes[2]" not in done.stderr
    assert "graph.nodes[3].with.seconds: expected a number from 0 to" in done.stderr
    assert "graph.nodes[4]" not in done.stderr
    assert "graph.nodes[5]" not in done.stderr
    hutch("init", "--runtime", "fast", "--executor", "/bin/true", cwd=tmp_path)
    assert hutch("flow", "validate", "flow.json", cwd=tmp_path).stderr == ""


@pytest.mark.parametrize(
    "arguments", [[], ["flow.json", "--manifest", "manifest.json"], ["flow.json", "--flow", "demo"]]
)
@pytest.mark.parametrize("command", ["validate", "show"])
def test_one_place_must_be_named(tmp_path: Path, command: str, arguments: list[str]) -> None:
    done = hutch("flow", command, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected" in done.stderr


def test_flow_is_drawn(tmp_path: Path) -> None:
    done = hutch("flow", "show", write(tmp_path, GOOD), cwd=tmp_path)
    assert done.returncode == 0
    assert (
        done.stdout
        == """\
demo: 2 steps

┌───────────┐
│    get    │
│ http.get  │
└─────┬─────┘
      ▼
 ╭─────────╮
 │   end   │
 │ finish  │
 ╰─────────╯
"""
    )


def test_flow_is_drawn_for_the_terminal_that_there_is(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    narrow = hutch("flow", "show", file, cwd=tmp_path, env={"COLUMNS": "12"})
    assert narrow.stdout.splitlines()[2:] == ["get  http.get  → end", "end  finish"]
    plain = hutch("flow", "show", file, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert "+-----+-----+" in plain.stdout


def test_flow_that_is_yaml_is_had_as_the_json_that_it_is_read_as(tmp_path: Path) -> None:
    shutil.copy(GREET, tmp_path)
    done = hutch("flow", "show", "--json", "greet.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["graph"]["edges"] == [{"from": "shout", "to": "done", "on": "success"}]
    assert document["metadata"]["generated_at"] == "2026-01-31T12:00:00Z"
    (tmp_path / "greet.json").write_text(done.stdout)
    assert hutch("flow", "validate", "greet.json", cwd=tmp_path).returncode == 0


def test_flow_is_drawn_for_mermaid(tmp_path: Path) -> None:
    done = hutch("flow", "show", "--mermaid", write(tmp_path, GOOD), cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "flowchart TD"
    assert "    n0 --> n1" in done.stdout


def test_flow_of_a_manifest_is_drawn(tmp_path: Path) -> None:
    file = manifest(tmp_path, GOOD)
    assert hutch("flow", "show", "--manifest", file, cwd=tmp_path).stdout.startswith("demo: 2 steps\n")
    two = manifest(tmp_path, GOOD, {**GOOD, "flow": {"name": "other", "timeout_ms": 0}})
    done = hutch("flow", "show", "--manifest", two, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "hutch: --flow: expected one of demo, other\n")
    assert hutch("flow", "show", "--manifest", two, "--flow", "other", cwd=tmp_path).stdout.startswith(
        "other: "
    )


def test_bad_flow_is_not_drawn(tmp_path: Path) -> None:
    done = hutch("flow", "show", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'hutch: graph.edges[1].to: there is no step "c"' in done.stderr


def test_init_binds_the_project_to_our_runtime(tmp_path: Path) -> None:
    done = hutch("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tm/config/runtime.yaml: the runtime is hutch (python)\n"
    assert "engine: hutch\n" in (tmp_path / "tm/config/runtime.yaml").read_text()


def test_init_takes_another_runtime(tmp_path: Path) -> None:
    done = hutch("init", "--runtime", "fast", "--executor", "bin/fast", "--language", "rust", cwd=tmp_path)
    assert done.returncode == 0
    assert "there is no bin/fast yet" in done.stderr
    text = (tmp_path / "tm/config/runtime.yaml").read_text()
    assert "language: rust\n  plugins_language: rust\n  executor_path: bin/fast\n" in text


def test_init_and_validate_warn_of_languages_that_do_not_fit(tmp_path: Path) -> None:
    done = hutch(
        "init", "--runtime", "rust", "--executor", "/bin/true", "--plugins-language", "c", cwd=tmp_path
    )
    assert done.returncode == 0
    assert (
        "hutch: warning: tm/config/runtime.yaml: the runtime rust is of the language rust, its" in done.stderr
    )
    done = hutch("flow", "validate", write(tmp_path, GOOD), cwd=tmp_path)
    assert done.returncode == 0
    assert "its plugins are of c" in done.stderr
    assert "hutch init --runtime" in done.stderr
    done = hutch("flow", "validate", "--json", "flow.json", cwd=tmp_path)
    assert "its plugins are of c" in json.loads(done.stdout)["warnings"][0]


def test_init_refuses_a_name_that_no_file_should_have(tmp_path: Path) -> None:
    done = hutch("init", "--runtime", "../x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "There can be no runtime '../x'" in done.stderr
    assert not (tmp_path / "tm").exists()
