"""Inputs are checked against both forms of `inputs_schema`. All problems are reported at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.rep.flows import document, step

from hutch.protocols.rep.ir.inputs import check_inputs, is_json_schema, optional_names
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow


def input_problems(schema: dict[str, Any], inputs: Any) -> list[str]:
    return [
        str(problem) for problem in check_inputs(parse_flow(document([step("a")], inputs=schema)), inputs)
    ]


def schema_problems(schema: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidFlow) as invalid:
        parse_flow(document([step("a")], inputs=schema))
    return [str(problem) for problem in invalid.value.problems]


TYPES = [
    ("string", "x", 1),
    ("int", 3, 3.5),
    ("integer", 3, "3"),
    ("number", 3.5, "x"),
    ("float", 3, None),
    ("bool", True, 1),
    ("boolean", False, "false"),
    ("object", {"a": 1}, []),
    ("list", [1, "a"], "a"),
    ("list<string>", ["a", "b"], ["a", 1]),
    ("List<String>", ["a"], [1]),
    ("string[]", ["a"], "a"),
    ("list[int]", [1], ["1"]),
    ("list<list<int>>", [[1], []], [1]),
    ("map<string, list<int>>", {"a": [1]}, {"a": ["x"]}),
    ("map<int>", {"a": 1}, {"a": "x"}),
    ("timestamp", "2026-01-31T12:00:00Z", 5),
    ("int?", None, "x"),
    ("optional<int>", 3, "x"),
]


@pytest.mark.parametrize(("name", "good", "bad"), TYPES, ids=[name for name, _, _ in TYPES])
def test_types_of_the_public_compiler(name: str, good: object, bad: object) -> None:
    schema = {"x": {"type": name}}
    assert input_problems(schema, {"x": good}) == []
    assert len(input_problems(schema, {"x": bad})) == 1


def test_any_accepts_any_value_but_requires_one() -> None:
    assert input_problems({"x": {"type": "any"}}, {"x": None}) == []
    assert input_problems({"x": {"type": "any"}}, {}) == ["inputs.x: is missing"]


def test_all_problems_are_reported_with_their_paths() -> None:
    schema = {"ids": {"type": "list<string>"}, "n": {"type": "int"}, "name": {"type": "string"}}
    assert sorted(input_problems(schema, {"ids": ["a", 2, 3], "n": "1"})) == [
        "inputs.ids[1]: expected a string, got the number 2",
        "inputs.ids[2]: expected a string, got the number 3",
        'inputs.n: expected an integer, got "1"',
        "inputs.name: is missing; expected a string",
    ]


def test_unknown_input_is_named_if_it_resembles_a_missing_one() -> None:
    [problem] = input_problems({"name": {"type": "string"}}, {"nme": "bo", "other": 1})
    assert problem.startswith("inputs.name: is missing; expected a string")
    assert problem.endswith('; "nme" is not an input of this flow')


def test_optional_inputs_may_be_omitted_and_others_added() -> None:
    schema = {"a": {"type": "int", "required": False}, "b": {"type": "int?"}}
    assert input_problems(schema, {}) == []
    assert input_problems(schema, {"run_id": "x"}) == []
    assert len(input_problems(schema, {"a": "x", "b": "y"})) == 2


def test_optional_names_are_those_that_a_run_may_omit() -> None:
    assert optional_names({"a": {"type": "int", "required": False}, "b": "int?", "c": "int"}) == {"a", "b"}
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}
    assert optional_names(schema) == {"a"}
    assert optional_names({}) == optional_names({"type": "object"}) == frozenset()


def test_json_schema_is_applied() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9},
            "mode": {"enum": ["fast", "safe"]},
            "who": {"$ref": "#/$defs/who"},
        },
        "required": ["n", "who"],
        "additionalProperties": False,
        "$defs": {
            "who": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        },
    }
    assert input_problems(schema, {"n": 3, "who": {"name": "Ada"}}) == []
    assert sorted(input_problems(schema, {"n": 0, "mode": "slow", "who": {}, "wat": 1})) == [
        'inputs.mode: expected "fast" or "safe", got "slow"',
        "inputs.n: expected an integer from 1 to 9, got the number 0",
        "inputs.wat: is not known; expected only mode, n, who",
        "inputs.who.name: is missing; expected a string",
    ]


def test_empty_schema_accepts_any_object() -> None:
    assert input_problems({}, {"anything": [1]}) == []
    assert input_problems({}, ["no object"]) == ["inputs: expected an object, got a list"]
    assert input_problems({}, None) == ["inputs: expected an object, got null"]


@pytest.mark.parametrize("name", ["type", "properties", "required", "anyOf", "$schema"])
def test_input_may_be_named_like_a_json_schema_keyword(name: str) -> None:
    schema = {name: {"type": "string"}}
    assert not is_json_schema(schema)
    assert input_problems(schema, {name: "x"}) == []
    assert input_problems(schema, {}) == [f"inputs.{name}: is missing; expected a string"]


def test_unknown_type_is_refused_with_the_flow() -> None:
    known = "expected string, int, number, bool, object, list<…>, any"
    assert schema_problems({"a": {"type": "strng"}, "b": {"type": "list<Volt>"}, "c": 5}) == [
        'inputs_schema.a.type: there is no type "strng"; did you mean string?',
        f'inputs_schema.b.type: there is no type "Volt"; {known}',
        'inputs_schema.c: expected an object with a "type", or a JSON Schema as a whole, got the number 5',
    ]


def test_invalid_json_schema_is_refused_with_the_flow() -> None:
    found = schema_problems({"type": "object", "properties": {"a": {"type": "strng"}}})
    assert len(found) == 1
    assert found[0].startswith("inputs_schema: expected a JSON Schema: ")


def test_remote_schema_is_never_fetched() -> None:
    found = schema_problems(
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    )
    assert found[0].startswith("inputs_schema: expected a JSON Schema: ")


@pytest.mark.parametrize("value", ["\ud800", 10**400, {"\udfff": 1}])
def test_odd_values_do_not_raise(value: object) -> None:
    assert isinstance(input_problems({"x": {"type": "any"}}, {"x": value}), list)


def test_deeply_nested_type_is_refused() -> None:
    assert schema_problems({"x": {"type": "list<" * 50 + "int" + ">" * 50}})[0].endswith(
        "is nested too deeply"
    )


def test_exponential_schema_is_refused_without_evaluation() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$defs": {**doubling, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}
    assert "can take too long" in " ".join(schema_problems(schema))


def test_inputs_too_costly_for_their_schema_are_refused_without_evaluation() -> None:
    alternatives = {"anyOf": [{"const": n} for n in range(1_000)]}
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": alternatives}}}
    assert "takes too long to check" in " ".join(input_problems(schema, {"all": [-1] * 10_000}))
