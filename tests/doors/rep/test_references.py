"""References lead to inputs and outputs; literals in strings are read where they must be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doors.rep.flows import chain, compiled, document, edge, step

from hutch.doors.rep.flow import read
from hutch.doors.rep.references import (
    BadReference,
    Reference,
    UnresolvedReference,
    parameters,
    parse,
    resolve,
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
def test_reference_is_what_it_leads_to(reference: str, expected: object) -> None:
    assert resolve(reference, INPUTS, OUTPUTS, steps=OUTPUTS) == expected


def test_references_are_found_everywhere_in_a_value() -> None:
    value = {"a": ["$input.name", {"b": "$step.many"}], "c": 1, "d": None, "$input.name": "key"}
    assert resolve(value, INPUTS, OUTPUTS) == {
        "a": ["Ada", {"b": [10, 20]}],
        "c": 1,
        "d": None,
        "$input.name": "key",
    }


@pytest.mark.parametrize(
    "text",
    ["", "$", "$5.00", "$inputs.x", "$stepping.x", "$.other.x", "hello $input.name", "$(x)", "${name}"],
)
def test_other_texts_are_no_references(text: str) -> None:
    assert parse(text) is None
    assert resolve(text, INPUTS, OUTPUTS) == text


def test_text_that_looks_like_a_reference_can_be_written_with_two_signs() -> None:
    assert resolve("$$input.name", INPUTS, OUTPUTS) == "$input.name"
    assert resolve("$$step.x", INPUTS, OUTPUTS) == "$step.x"
    assert resolve("$$ 5", INPUTS, OUTPUTS) == "$$ 5"


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
        parse(text)
    with pytest.raises(UnresolvedReference):
        resolve(text, INPUTS, OUTPUTS)


def test_longest_id_that_fits_is_meant() -> None:
    steps = {"a", "a.b", "a.b.c.d"}
    assert parse("$step.a.b.c", steps) == Reference("$step.a.b.c", "a.b", ("c",))
    assert parse("$step.a.x", steps) == Reference("$step.a.x", "a", ("x",))
    assert parse("$step.a[0].b", steps) == Reference("$step.a[0].b", "a", (0, "b"))


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
def test_reference_to_nothing_fails_and_says_why(reference: str, expected: str) -> None:
    with pytest.raises(UnresolvedReference) as failed:
        resolve({"x": [reference]}, INPUTS, OUTPUTS)
    assert str(failed.value) == expected
    assert failed.value.reference == reference


def test_failure_names_keys_and_no_values() -> None:
    with pytest.raises(UnresolvedReference) as failed:
        resolve("$input.x", {f"key{number}": "secret" for number in range(50)}, {})
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


def given(with_: dict[str, Any], *, kind: str = "code.run", by_compiler: bool = False) -> dict[str, Any]:
    source_file = "a.wdl" if by_compiler else "a.json"
    flow = read(document([step("a", kind, with_)], source_file=source_file))
    return parameters(flow, flow.nodes["a"], {}, {}, SCHEMA)


def test_text_stays_text_in_flows_written_by_hand() -> None:
    with_ = {
        "code": "[1, 2]",
        "maybe": "3",
        "mode": "1",
        "other": {"zip": "12345", "quoted": '"x"', "no": "false"},
    }
    assert given(with_) == with_


def test_literal_is_read_where_a_text_cannot_be_meant() -> None:
    assert given({"seconds": "1.5", "ids": "[1, 2]"}) == {"seconds": 1.5, "ids": [1, 2]}
    assert given({"ids": ["1", "2"]}) == {"ids": [1, 2]}
    assert given({"seconds": "soon"}) == {"seconds": "soon"}  # for the kind to refuse


def test_source_text_of_the_public_compiler_is_read() -> None:
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
    assert given(with_, by_compiler=True) == {
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


def test_bare_word_of_the_compiler_stays_text_where_the_kind_wants_one() -> None:
    assert given({"code": "42"}, by_compiler=True) == {"code": "42"}


def test_emit_is_the_compilers_own_kind() -> None:
    assert given({"fixed": "3", "text": "done"}, kind="dsl.emit") == {"fixed": 3, "text": "done"}


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
def test_what_json_has_not_stays_text(text: str) -> None:
    assert given({"x": text}, by_compiler=True) == {"x": text}


# --- parameters ---


def test_parameters_of_compiled_steps() -> None:
    flow = read(compiled())
    outputs = {"read": {"status": "ok", "values": {"a": 80.5}}}
    inputs = {"endpoint": "opc://x"}

    def of(step_id: str) -> dict[str, Any]:
        return parameters(flow, flow.nodes[step_id], inputs, outputs)

    assert of("read") == {"endpoint": "opc://x", "node_ids": ["a", "b"], "count": 3}
    assert of("write") == {"endpoint": "opc://x", "value": 80.5}
    assert of("emit_1") == {"result": {"a": 80.5}, "fixed": 3}
    assert of("when_0")["key_from"] == "ok"


def test_cases_of_a_switch_are_names_and_no_references() -> None:
    steps = [
        step("a"),
        step("s", "switch", {"key_from": "$step.a", "cases": {"1": "3"}, "default": "3"}),
        step("3"),
    ]
    flow = read(document(steps, [edge("a", "s"), edge("s", "3", case="1")], source_file="x.wdl"))
    resolved = parameters(flow, flow.nodes["s"], {}, {"a": "1"})
    assert resolved == {"key_from": "1", "cases": {"1": "3"}, "default": "3"}


def test_flow_within_a_flow_keeps_its_own_references() -> None:
    inner = document(
        [step("one"), step("two", with_={"x": "$step.one", "y": "$input.z"})], chain("one", "two")
    )
    flow = read(
        document(
            [step("a"), step("sub", "flow.run", {"flow": inner, "inputs": {"z": "$step.a"}})],
            chain("a", "sub"),
        )
    )
    resolved = parameters(flow, flow.nodes["sub"], {}, {"a": 7})
    assert resolved == {"flow": inner, "inputs": {"z": 7}}
