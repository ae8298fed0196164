"""Manifests: a flow is found by its name, and must match its entry in the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.rep.flows import compiled, document, step
from tests.protocols.rep.manifests import manifest_entry

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.manifest import load_manifest, schema_hash


def write(folder: Path, *documents: dict[str, Any], **changes: Any) -> Path:
    """Writes these flows and a manifest of the flows. `changes` sets fields of every entry. The value `...`
    deletes a field.
    """
    (folder / "flows").mkdir()
    entries = []
    for value in documents:
        name = value["flow"]["name"]
        (folder / f"flows/{name}.ir.json").write_text(json.dumps(value))
        entry = {**manifest_entry(parse_flow(value), f"flows/{name}.ir.json"), **changes}
        entries.append({key: field for key, field in entry.items() if field is not ...})
    file = folder / "manifest.json"
    file.write_text(json.dumps(entries))
    return file


def problems(file: Path, name: str = "demo") -> list[str]:
    with pytest.raises(InvalidFlow) as refused:
        load_manifest(file).load(name)
    return [str(problem) for problem in refused.value.problems]


def test_flows_are_found_by_name_beside_the_manifest(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path, compiled(), document([step("a")], name="other")))
    assert list(manifest.entries) == ["demo", "other"]
    assert manifest.entries["demo"].step_kinds == (
        "dsl.emit",
        "finish",
        "opcua.read",
        "opcua.write",
        "switch",
    )
    assert manifest.load("other").name == "other"
    assert manifest.load("demo").step_kinds() == ["opcua.read", "opcua.write"]


def test_schema_hash_is_that_of_the_canonical_json() -> None:
    # Made with `sha256sum` from {"a":{"type":"string"},"é":{"type":"int"}} in UTF-8.
    expected = "d06cbf9bb9bfcfba382661f0ce7241f2f81092d1e9def5a89d920110d020a25a"
    assert schema_hash({"é": {"type": "int"}, "a": {"type": "string"}}) == f"sha256:{expected}"


def test_control_kinds_may_be_omitted(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path, compiled(), step_kinds=["opcua.read", "opcua.write"]))
    assert manifest.load("demo").name == "demo"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"step_kinds": ["http.get"]},
            "[0].step_kinds: flows/demo.ir.json has opcua.read, opcua.write; compile it again",
        ),
        (
            {"inputs_schema_hash": "sha256:00"},
            "[0].inputs_schema_hash: does not match the schema in flows/demo.ir.json; compile it again",
        ),
        ({"policyRef": "p"}, '[0].policyRef: flows/demo.ir.json has "none"; compile it again'),
    ],
)
def test_stale_manifest_is_reported(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert problems(write(tmp_path, compiled(), **changes)) == [expected]


def test_renamed_flow_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, compiled(), name="renamed")
    assert problems(file, "renamed") == ["[0].name: flows/demo.ir.json has the flow demo; compile it again"]


def test_unknown_flow_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, compiled())
    assert problems(file, "dmo") == [f'{file}: has no flow "dmo"; did you mean demo?']
    assert problems(file, "x") == [f'{file}: has no flow "x"; it has demo']


def test_missing_flow_file_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, compiled())
    (tmp_path / "flows/demo.ir.json").unlink()
    assert problems(file) == [f"{tmp_path}/flows/demo.ir.json: cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", ["expected a list of flows, got an object"]),
        ("[1]", ["[0]: expected an object, got the number 1"]),
        (
            '[{"name": "a b", "ir_path": ""}]',
            [
                "[0].inputs_schema_hash: is missing; expected a string",
                "[0].ir_path: expected a string that is not empty, got",
                "[0].name: expected a string that matches",
                "[0].step_kinds: is missing; expected a list",
            ],
        ),
    ],
)
def test_invalid_manifest_is_reported(tmp_path: Path, text: str, expected: list[str]) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(text)
    with pytest.raises(InvalidFlow) as refused:
        load_manifest(file)
    found = sorted(str(problem).removeprefix(f"{file}: ") for problem in refused.value.problems)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


def test_duplicate_name_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, compiled())
    entries = json.loads(file.read_text())
    file.write_text(json.dumps(entries * 2))
    with pytest.raises(InvalidFlow, match=r'^\[1\].name: "demo" is already the name of \[0\]$'):
        load_manifest(file)
