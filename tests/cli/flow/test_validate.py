"""`hutch flow validate`, `hutch flow show` and `hutch init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, compiled, document, edge, step
from tests.protocols.rep.manifests import manifest_entry
from tests.support.processes import hutch

from hutch.protocols.rep.ir.parse import parse_flow

GREET = Path(__file__).parents[3] / "examples" / "flows" / "greet.yaml"
GOOD = document(
    [step("get", "http.get", {"url": "$input.url"}), step("end", "finish")],
    chain("get", "end"),
    inputs={"url": {"type": "string"}},
)
CODE = {"code": "return 1"}
BAD = document([step("a", with_=CODE, retries=-1), step("b", with_=CODE)], [edge("a", "b"), edge("b", "c")])


def write(folder: Path, value: dict[str, Any], name: str = "flow.json") -> str:
    (folder / name).write_text(json.dumps(value))
    return name


def manifest(folder: Path, *documents: dict[str, Any]) -> str:
    entries = []
    for value in documents:
        name = write(folder, value, f"{value['flow']['name']}.ir.json")
        entries.append(manifest_entry(parse_flow(value), name))
    (folder / "manifest.json").write_text(json.dumps(entries))
    return "manifest.json"


def test_valid_flow_is_ok(tmp_path: Path) -> None:
    done = hutch("flow", "validate", write(tmp_path, GOOD), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "flow.json: ok: demo, 2 steps (http.get)\n", "")


def test_all_problems_of_an_invalid_flow_are_printed(tmp_path: Path) -> None:
    done = hutch("flow", "validate", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "hutch: 2 problems in flow.json\n")
    assert done.stdout.splitlines() == [
        "flow.json: graph.nodes[0].retry.max: expected an integer ≥ 0, got the number -1 (line 1, step a)",
        'flow.json: graph.edges[1].to: there is no step "c" (line 1)',
    ]


@pytest.mark.parametrize(
    "hostile",
    [
        document([step("a", "kind\x1b]0;owned\x07"), step("b", "finish")], chain("a", "b")),
        document([step("a", "code.run", {"code": "$step.\x1b]0;owned\x07"})]),
        document([step("a", "finish")], inputs={"\x9b2J": {"type": "unknown"}}),
    ],
    ids=["kind", "reference", "key"],
)
@pytest.mark.parametrize("command", ["validate", "show", "run"])
def test_flow_cannot_control_the_terminal(tmp_path: Path, hostile: dict[str, Any], command: str) -> None:
    done = hutch("flow", command, write(tmp_path, hostile), cwd=tmp_path)
    output = done.stdout + done.stderr
    assert output
    assert not [character for character in "\x1b\x07\x9b" if character in output]


def test_problems_are_printed_as_json(tmp_path: Path) -> None:
    done = hutch("flow", "validate", "--json", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    report = json.loads(done.stdout)
    assert (report["ok"], report["file"]) == (False, "flow.json")
    assert report["problems"] == [
        {
            "path": "graph.nodes[0].retry.max",
            "message": "expected an integer ≥ 0, got the number -1",
            "line": 1,
            "step": "a",
        },
        {"path": "graph.edges[1].to", "message": 'there is no step "c"', "line": 1},
    ]
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


def test_file_that_cannot_be_parsed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text("{")
    done = hutch("flow", "validate", "flow.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("flow.json: expected JSON: line 1, column 2: ")
    assert hutch("flow", "validate", "gone.json", cwd=tmp_path).returncode == 2


def test_all_flows_of_a_manifest_are_validated(tmp_path: Path) -> None:
    file = manifest(tmp_path, GOOD, {**compiled(), "flow": {"name": "other", "timeout_ms": 0}})
    done = hutch("flow", "validate", "--manifest", file, cwd=tmp_path)
    assert done.returncode == 0
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == [
        "demo.ir.json: ok: demo, 2 steps",
        "other.ir.json: ok: other, 5 steps",
    ]
    write(tmp_path, {**BAD, "flow": {"name": "other", "timeout_ms": 0}}, "other.ir.json")
    done = hutch("flow", "validate", "--manifest", file, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], [each["ok"] for each in report["flows"]]) == (
        2,
        False,
        [True, False],
    )
    assert hutch("flow", "validate", "--manifest", file, "--flow", "demo", cwd=tmp_path).returncode == 0
    assert hutch("flow", "validate", "--manifest", file, "--flow", "unknown", cwd=tmp_path).returncode == 2


def test_flow_that_the_built_in_runtime_would_reject_is_invalid(tmp_path: Path) -> None:
    flow = document(
        [
            step("a", "htp.get"),
            step("b", "http.get", {"uri": "x"}),
            step("c", "shell.run", {"command": "ls"}),
            step("d", "wait", {"seconds": "soon"}),
            step("e", "wait", {"seconds": "3"}),
            step("f", "wait", {"seconds": "$input.seconds"}),
            step("g", "opcua.read"),
        ]
    )
    (tmp_path / "flow.json").write_text(json.dumps(flow, indent=1))
    done = hutch("flow", "validate", "flow.json", cwd=tmp_path)
    assert done.returncode == 2
    lines = [line.removeprefix("flow.json: graph.nodes") for line in done.stdout.splitlines()]
    assert lines[0].startswith(
        '[0].type: the built-in runtime has no kind "htp.get"; did you mean http.get? ('
    )
    assert lines[1].startswith("[1].with.url: is required (line ")
    assert lines[1].endswith(", step b)")
    assert lines[2].startswith("[1].with.uri: is unknown; did you mean url? http.get takes url, headers")
    assert lines[3].startswith("[3].with.seconds: expected a number from 0 to")
    assert len(lines) == 4
    hutch("init", "--runtime", "fast", "--executor", "/bin/true", cwd=tmp_path)
    assert hutch("flow", "validate", "flow.json", cwd=tmp_path).stderr == ""


@pytest.mark.parametrize(
    "arguments", [[], ["flow.json", "--manifest", "manifest.json"], ["flow.json", "--flow", "demo"]]
)
@pytest.mark.parametrize("command", ["validate", "show"])
def test_either_a_file_or_a_manifest_is_required(tmp_path: Path, command: str, arguments: list[str]) -> None:
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


def test_drawing_fits_the_terminal_and_its_encoding(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    narrow = hutch("flow", "show", file, cwd=tmp_path, env={"COLUMNS": "12"})
    assert narrow.stdout.splitlines()[2:] == ["get  http.get  → end", "end  finish"]
    plain = hutch("flow", "show", file, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert "+-----+-----+" in plain.stdout


def test_yaml_flow_is_printed_as_json(tmp_path: Path) -> None:
    text = json.dumps(GOOD, indent=1).replace('"2026-01-31T12:00:00Z"', "2026-01-31T12:00:00Z")
    (tmp_path / "greet.yaml").write_text(text.replace('"on": "success"', "on: success"))
    done = hutch("flow", "show", "--json", "greet.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == GOOD
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


def test_invalid_flow_is_not_drawn(tmp_path: Path) -> None:
    done = hutch("flow", "show", write(tmp_path, BAD), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'hutch: graph.edges[1].to: there is no step "c"' in done.stderr


def test_init_binds_the_project_to_the_built_in_runtime(tmp_path: Path) -> None:
    done = hutch("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tm/config/runtime.yaml: the runtime is hutch (python)\n"
    assert "engine: hutch\n" in (tmp_path / "tm/config/runtime.yaml").read_text()


def test_init_accepts_another_runtime(tmp_path: Path) -> None:
    done = hutch("init", "--runtime", "fast", "--executor", "bin/fast", "--language", "rust", cwd=tmp_path)
    assert done.returncode == 0
    assert "bin/fast does not exist yet" in done.stderr
    text = (tmp_path / "tm/config/runtime.yaml").read_text()
    assert "language: rust\n  plugins_language: rust\n  executor_path: bin/fast\n" in text


def test_init_and_validate_warn_about_languages_that_do_not_match(tmp_path: Path) -> None:
    done = hutch(
        "init", "--runtime", "rust", "--executor", "/bin/true", "--plugins-language", "c", cwd=tmp_path
    )
    assert done.returncode == 0
    assert (
        "hutch: warning: tm/config/runtime.yaml: the runtime rust uses the language rust, its" in done.stderr
    )
    done = hutch("flow", "validate", write(tmp_path, GOOD), cwd=tmp_path)
    assert done.returncode == 0
    assert "its plugins use c" in done.stderr
    assert "hutch init --runtime" in done.stderr
    done = hutch("flow", "validate", "--json", "flow.json", cwd=tmp_path)
    assert "its plugins use c" in json.loads(done.stdout)["warnings"][0]


def test_init_rejects_a_name_that_is_not_a_file_name(tmp_path: Path) -> None:
    done = hutch("init", "--runtime", "../x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'../x' is not a valid name for a runtime" in done.stderr
    assert not (tmp_path / "tm").exists()


def test_kind_of_another_runtime_causes_a_warning(tmp_path: Path) -> None:
    done = hutch("flow", "validate", write(tmp_path, document([step("a", "opcua.read")])), cwd=tmp_path)
    assert done.returncode == 0
    assert 'the built-in runtime has no kind "opcua.read" (line 1, step a)' in done.stderr


def test_reference_that_is_only_a_part_of_a_text_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("""
name: x
inputs: {id: string}
steps:
  - id: a
    run: http.get
    with: {url: http://localhost/users/$input.id/x, headers: {x: "${input.id}", y: a$$input.id}}
  - id: b
    run: code.run
    with: {code: "return '/$input.id'"}
""")
    done = hutch("flow", "validate", "flow.yaml", cwd=tmp_path)
    assert done.returncode == 0
    [warning] = done.stderr.splitlines()
    assert "flow.yaml: steps[0].with.url: $input.id is only a part of this text" in warning
    assert "write ${input.id}" in warning
    assert warning.endswith("(line 7, step a)")


def test_item_outside_of_for_each_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("""
steps:
  - {id: a, run: http.get, for_each: [1], with: {url: "http://localhost/${item}"}}
  - {id: b, run: http.get, with: {url: "http://localhost/${item}", headers: {x: $index}}}
""")
    done = hutch("flow", "validate", "flow.yaml", cwd=tmp_path)
    assert done.returncode == 0
    url, header = done.stderr.splitlines()
    assert "steps[1].with.url: ${item} is not replaced, except in a step with for_each" in url
    assert "steps[1].with.headers.x: $index is not replaced" in header


def test_misspelled_key_of_flow_ir_causes_a_warning(tmp_path: Path) -> None:
    flow = document([{**step("a", "wait", {"seconds": 0}), "retries": {}, "x-note": 1}])
    done = hutch("flow", "validate", write(tmp_path, flow), cwd=tmp_path)
    assert done.returncode == 0
    assert "graph.nodes[0].retries: unknown key, which is ignored; did you mean retry?" in done.stderr
    assert "x-note" not in done.stderr


def test_missing_files_of_steps_are_problems(tmp_path: Path) -> None:
    (tmp_path / "child.yaml").write_text("{steps: [{run: wait, with: {seconds: 0}}]}")
    (tmp_path / "broken.yaml").write_text("{steps: []}")
    (tmp_path / "flow.yaml").write_text("""
steps:
  - {id: a, run: flow.run, with: {flow: child.yaml}}
  - {id: b, run: flow.run, with: {flow: chidl.yaml}}
  - {id: c, run: flow.run, with: {flow: broken.yaml}}
  - {id: d, run: flow.run, with: {flow: stored-flow}}
  - {id: e, run: toolscript.run, with: {file: gone.ts}}
""")
    done = hutch("flow", "validate", "flow.yaml", cwd=tmp_path)
    assert done.returncode == 2
    lines = [line.removeprefix("flow.yaml: ") for line in done.stdout.splitlines()]
    assert [line.replace(" of at least one step, got an empty list (line 1)", "") for line in lines] == [
        "steps[1].with.flow: there is no file chidl.yaml; did you mean child.yaml? (line 4, step b)",
        "steps[2].with.flow: broken.yaml is invalid: steps: expected a list (line 5, step c)",
        "steps[4].with.file: there is no file gone.ts (line 7, step e)",
    ]


def test_short_form_is_printed_as_flow_ir(tmp_path: Path) -> None:
    done = hutch("flow", "show", "--ir", str(GREET), cwd=tmp_path)
    ir = json.loads(done.stdout)
    assert (ir["version"], ir["flow"]["name"]) == ("1.0.0", "greet")
    (tmp_path / "greet.json").write_text(done.stdout)
    done = hutch("flow", "validate", "greet.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "greet.json: ok: greet, 2 steps (code.run)\n")


MISTAKES = """\
name: mistakes
inputs: {url: string}
steps:
  - {id: get, run: http.get, with: {url: "$input.ulr"}, timout: 3}
  - {id: parse, run: code.rnu, with: {code: "return 1", note: "see $step.get"}}
  - {id: save, run: code.run, with: {cod: "return 1"}, retry: many}
  - {id: sub, run: flow.run, with: {flow: gone.yaml}, after: gte}
"""


def test_mistakes_of_all_kinds_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(MISTAKES)
    done = hutch("flow", "validate", "--json", "flow.yaml", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 2
    found = [(problem["line"], problem["path"], problem["message"]) for problem in report["problems"]]
    assert [(line, path) for line, path, _ in found] == [
        (4, "steps[0].timout"),
        (4, "steps[0].with.url"),
        (5, "steps[1].run"),
        (6, "steps[2].retry"),
        (6, "steps[2].with.code"),
        (6, "steps[2].with.cod"),
        (7, "steps[3].after"),
        (7, "steps[3].with.flow"),
    ], found
    assert "did you mean timeout?" in found[0][2]
    assert "did you mean url?" in found[1][2]
    assert "did you mean code.run?" in found[2][2]
    assert "did you mean get?" in found[6][2]
    [warning] = report["warnings"]
    assert "$step.get is only a part of this text" in warning


def test_value_with_a_mistake_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("name: a b\nsteps: [{id: x}, {id: y, run: echo, when: 3}]\n")
    done = hutch("flow", "validate", "--json", "flow.yaml", cwd=tmp_path)
    paths = [problem["path"] for problem in json.loads(done.stdout)["problems"]]
    assert sorted(paths) == ["name", "steps[0].run", "steps[1].when"]
