"""References resolve to inputs and outputs; literals in strings are decoded where required."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, compiled, document, edge, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.references import (
    MAX_REFERENCE_CHARS,
    MAX_SEGMENTS,
    BadReference,
    Reference,
    UnresolvedReference,
    parse_reference,
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
    assert resolve_references(reference, INPUTS, OUTPUTS, steps=OUTPUTS) == expected


def test_references_are_found_everywhere_in_a_value() -> None:
    value = {"a": ["$input.name", {"b": "$step.many"}], "c": 1, "d": None, "$input.name": "key"}
    assert resolve_references(value, INPUTS, OUTPUTS) == {
        "a": ["Ada", {"b": [10, 20]}],
        "c": 1,
        "d": None,
        "$input.name": "key",
    }


@pytest.mark.parametrize(
    "text",
    ["", "$", "$5.00", "$inputs.x", "$stepping.x", "$.other.x", "hello $input.name", "$(x)", "${name}"],
)
def test_other_texts_are_not_references(text: str) -> None:
    assert parse_reference(text) is None
    assert resolve_references(text, INPUTS, OUTPUTS) == text


def test_second_dollar_sign_escapes_a_reference() -> None:
    assert resolve_references("$$input.name", INPUTS, OUTPUTS) == "$input.name"
    assert resolve_references("$$step.x", INPUTS, OUTPUTS) == "$step.x"
    assert resolve_references("$$ 5", INPUTS, OUTPUTS) == "$$ 5"


@pytest.mark.parametrize(
    "text",
    [
        "$step",
        "$step.",
        "$input.",
        "$input..a",
        "$input.a[",
        "$input.a[x]",
        '$input["a',
        "$input.a()",
        "$step[0]",
    ],
)
def test_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text)
    with pytest.raises(UnresolvedReference):
        resolve_references(text, INPUTS, OUTPUTS)


def test_length_of_a_reference_is_limited() -> None:
    keys = ".k" * MAX_SEGMENTS
    assert parse_reference(f"$input{keys}") is not None
    with pytest.raises(BadReference, match=f"has more than {MAX_SEGMENTS} keys and indexes"):
        parse_reference(f"$input{keys}.k")
    long = f"$input.{'k' * MAX_REFERENCE_CHARS}"
    with pytest.raises(BadReference, match=f"expected at most {MAX_REFERENCE_CHARS} characters") as refused:
        parse_reference(long)
    assert len(str(refused.value)) < 200
    assert parse_reference(long.replace("$input", "$other")) is None


def test_long_references_are_parsed_in_time() -> None:
    text = "$step" + ".a" * 30_000
    began = time.process_time()
    for _ in range(100):
        with pytest.raises(BadReference):
            parse_reference(text, {"a"})
    assert time.process_time() - began < 1


def test_longest_matching_id_wins() -> None:
    steps = {"a", "a.b", "a.b.c.d"}
    assert parse_reference("$step.a.b.c", steps) == Reference("$step.a.b.c", "a.b", ("c",))
    assert parse_reference("$step.a.x", steps) == Reference("$step.a.x", "a", ("x",))
    assert parse_reference("$step.a[0].b", steps) == Reference("$step.a[0].b", "a", (0, "b"))


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
        resolve_references({"x": [reference]}, INPUTS, OUTPUTS)
    assert str(failed.value) == expected
    assert failed.value.reference == reference


def test_error_lists_keys_without_values() -> None:
    with pytest.raises(UnresolvedReference) as failed:
        resolve_references("$input.x", {f"key{number}": "secret" for number in range(50)}, {})
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
    return resolve_parameters(flow, flow.nodes["a"], {}, {}, SCHEMA)


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
    assert parameters_of({"seconds": "soon"}) == {"seconds": "soon"}  # left for the kind to refuse


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
        return resolve_parameters(flow, flow.nodes[step_id], inputs, outputs)

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
    resolved = resolve_parameters(flow, flow.nodes["s"], {}, {"a": "1"})
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
    resolved = resolve_parameters(flow, flow.nodes["sub"], {}, {"a": 7})
    assert resolved == {"flow": inner, "inputs": {"z": 7}}
