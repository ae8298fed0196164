"""Values of references, and literals in parameters."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.rep.flows import chain, compiled, document, edge, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.resolve import (
    LoopItem,
    ReferenceValues,
    UnresolvedReference,
    resolve_parameters,
    resolve_references,
)

INPUTS = {
    "name": "Ada",
    "deep": {"list": [{"x": 1}, {"x": 2}], "odd.key": "odd", "content-type": "a/b"},
    "0": "zero",
}
OUTPUTS: dict[str, Any] = {
    "fetch": {"status": 200, "body": None},
    "many": [10, 20],
    "plain": "text",
    "a.b": {"c": 3},
}
VALUES = ReferenceValues(INPUTS, OUTPUTS, OUTPUTS)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("$input.name", "Ada"),
        ("$.inputs.name", "Ada"),
        ("  $input.name\n", "Ada"),
        ("$input", INPUTS),
        ("$input.deep.list.1.x", 2),
        ("$input.deep.list[1].x", 2),
        ('$input.deep["odd.key"]', "odd"),
        ("$input.deep.content-type", "a/b"),
        ("$input[0]", "zero"),
        ("$step.fetch.status", 200),
        ("$.vars.fetch.status", 200),
        ("$step.fetch.body", None),
        ("$step.fetch", {"status": 200, "body": None}),
        ("$step.many[0]", 10),
        ("$step.many.1", 20),
        ("$step.a.b.c", 3),
    ],
)
def test_reference_resolves_to_its_value(reference: str, expected: object) -> None:
    assert resolve_references(reference, VALUES) == expected


def test_optional_input_that_is_not_given_is_null() -> None:
    values = VALUES._replace(optional_inputs=("note", "name"))
    assert resolve_references(["$input.note", "$input.name"], values) == [None, "Ada"]
    assert resolve_references("$input", values) == INPUTS
    for reference in ("$input.other", "$input.note.text"):
        with pytest.raises(UnresolvedReference):
            resolve_references(reference, values)


def test_references_are_found_everywhere_in_a_value() -> None:
    value = {"a": ["$input.name", {"b": "$step.many"}], "c": 1, "d": None, "$input.name": "key"}
    assert resolve_references(value, VALUES) == {
        "a": ["Ada", {"b": [10, 20]}],
        "c": 1,
        "d": None,
        "$input.name": "key",
    }


def test_second_dollar_sign_escapes_a_reference() -> None:
    assert resolve_references("$$input.name", VALUES) == "$input.name"
    assert resolve_references("$$step.x", VALUES) == "$step.x"
    assert resolve_references("$$ 5", VALUES) == "$$ 5"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("$input.nmae", "$input.nmae: there is no 'nmae' in the inputs; it has name, deep, 0"),
        ("$step.fetch.body.x", "$step.fetch.body.x: the output of fetch.body is null, which has no 'x'"),
        ("$step.plain.x", "$step.plain.x: the output of plain is a string, which has no 'x'"),
        ("$step.many.x", "$step.many.x: the output of many is a list; expected an index, not 'x'"),
        ("$step.many[2]", "$step.many[2]: the output of many has 2 items, and no item 2"),
        ("$step.later.x", "$step.later.x: step later has no output in this run"),
    ],
)
def test_unresolved_reference_fails_with_a_reason(reference: str, expected: str) -> None:
    with pytest.raises(UnresolvedReference) as failed:
        resolve_references({"x": [reference]}, VALUES)
    assert str(failed.value) == expected
    assert failed.value.reference == reference


def test_error_lists_keys_without_values() -> None:
    inputs = {f"key{number}": "secret" for number in range(50)}
    with pytest.raises(UnresolvedReference) as failed:
        resolve_references("$input.x", ReferenceValues(inputs, {}))
    assert "key0, key1" in str(failed.value)
    assert "key9" not in str(failed.value)
    assert "secret" not in str(failed.value)


# --- literals ---

SCHEMA = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "seconds": {"type": "number"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "mode": {"enum": ["1", "2"]},
    },
}


def parameters_of(
    with_: dict[str, Any], *, kind: str = "code.run", by_compiler: bool = False
) -> dict[str, Any]:
    source_file = "a.wdl" if by_compiler else "a.json"
    flow = parse_flow(document([step("a", kind, with_)], source_file=source_file))
    return resolve_parameters(flow, flow.nodes["a"], ReferenceValues({}, {}), SCHEMA)


def test_text_stays_text_in_flows_written_by_hand() -> None:
    with_ = {
        "code": "[1, 2]",
        "maybe": "3",
        "mode": "1",
        "other": {"zip": "12345", "quoted": '"x"', "no": "false"},
    }
    assert parameters_of(with_) == with_


def test_literal_is_decoded_where_a_string_is_not_allowed() -> None:
    assert parameters_of({"seconds": "1.5", "ids": "[1, 2]"}) == {"seconds": 1.5, "ids": [1, 2]}
    assert parameters_of({"ids": ["1", "2"]}) == {"ids": [1, 2]}
    assert parameters_of({"seconds": "soon"}) == {
        "seconds": "soon"
    }  # not a number; the step kind reports this later


def test_source_text_of_the_public_compiler_is_decoded() -> None:
    with_ = {
        "number": "3",
        "text": '"hi there"',
        "single": "'x'",
        "bare": "https://example.com/?a=b",
        "list": '["a", "b"]',
        "python": "['a', True, None]",
        "flag": "true",
        "deep": {"a": "1", "b": ['"two"']},
        "code": '"1 + 1"',
        "mode": "1",
    }
    assert parameters_of(with_, by_compiler=True) == {
        "number": 3,
        "text": "hi there",
        "single": "x",
        "bare": "https://example.com/?a=b",
        "list": ["a", "b"],
        "python": ["a", True, None],
        "flag": True,
        "deep": {"a": 1, "b": ["two"]},
        "code": "1 + 1",
        "mode": "1",
    }


def test_compiled_literal_stays_text_where_a_string_is_required() -> None:
    assert parameters_of({"code": "42"}, by_compiler=True) == {"code": "42"}


def test_emit_decodes_literals_in_all_flows() -> None:
    assert parameters_of({"fixed": "3", "text": "done"}, kind="dsl.emit") == {"fixed": 3, "text": "done"}


@pytest.mark.parametrize(
    "text",
    [
        "{1, 2}",
        "b'x'",
        "1j",
        "(" * 5000,
        "[" * 9000,
        "1e999",
        "NaN",
        "__import__('os')",
        "'\\d",
        "{1: 2}",
        "007",
    ],
)
def test_literal_without_json_equivalent_stays_text(text: str) -> None:
    assert parameters_of({"x": text}, by_compiler=True) == {"x": text}


# --- parameters ---


def test_parameters_of_compiled_steps() -> None:
    flow = parse_flow(compiled())
    outputs = {"read": {"status": "ok", "values": {"a": 80.5}}}
    inputs = {"endpoint": "opc://x"}

    def parameters_of_step(step_id: str) -> dict[str, Any]:
        return resolve_parameters(flow, flow.nodes[step_id], ReferenceValues(inputs, outputs, flow.nodes))

    assert parameters_of_step("read") == {"endpoint": "opc://x", "node_ids": ["a", "b"], "count": 3}
    assert parameters_of_step("write") == {"endpoint": "opc://x", "value": 80.5}
    assert parameters_of_step("emit_1") == {"result": {"a": 80.5}, "fixed": 3}
    assert parameters_of_step("when_0")["key_from"] == "ok"


def test_cases_of_a_switch_are_not_resolved() -> None:
    steps = [
        step("a"),
        step("s", "switch", {"key_from": "$step.a", "cases": {"1": "3"}, "default": "3"}),
        step("3"),
    ]
    flow = parse_flow(document(steps, [edge("a", "s"), edge("s", "3", case="1")], source_file="x.wdl"))
    resolved = resolve_parameters(flow, flow.nodes["s"], ReferenceValues({}, {"a": "1"}))
    assert resolved == {"key_from": "1", "cases": {"1": "3"}, "default": "3"}


def test_nested_flow_keeps_its_own_references() -> None:
    inner = document(
        [step("one"), step("two", with_={"x": "$step.one", "y": "$input.z"})], chain("one", "two")
    )
    flow = parse_flow(
        document(
            [step("a"), step("sub", "flow.run", {"flow": inner, "inputs": {"z": "$step.a"}})],
            chain("a", "sub"),
        )
    )
    resolved = resolve_parameters(flow, flow.nodes["sub"], ReferenceValues({}, {"a": 7}))
    assert resolved == {"flow": inner, "inputs": {"z": 7}}


def test_item_and_index_resolve_in_values_and_texts() -> None:
    values = ReferenceValues(INPUTS, OUTPUTS, OUTPUTS, LoopItem({"name": "Bo", "text": "$input.name"}, 3))
    value = {"a": "$item.name", "b": "$index", "c": "${index}: ${item.name} ${input.name}", "d": "$item.text"}
    assert resolve_references(value, values, interpolate=True) == {
        "a": "Bo",
        "b": 3,
        "c": "3: Bo Ada",
        "d": "$input.name",  # a value is not resolved again, even if its text looks like a reference
    }
    with pytest.raises(UnresolvedReference, match="there is no 'nmae' in the item; it has name, text"):
        resolve_references("$item.nmae", values)
