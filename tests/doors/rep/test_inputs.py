"""Inputs are checked against both forms of `inputs_schema`, everything that is wrong at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doors.rep.flows import document, step

from hutch.doors.rep.flow import read
from hutch.doors.rep.inputs import check, is_json_schema
from hutch.doors.rep.problems import InvalidFlow


def wrong(schema: dict[str, Any], inputs: Any) -> list[str]:
    return [str(each) for each in check(read(document([step("a")], inputs=schema)), inputs)]


def refused(schema: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidFlow) as invalid:
        read(document([step("a")], inputs=schema))
    return [str(each) for each in invalid.value.problems]


FITS = [
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


@pytest.mark.parametrize(("name", "good", "bad"), FITS, ids=[each[0] for each in FITS])
def test_types_of_the_public_compiler(name: str, good: object, bad: object) -> None:
    schema = {"x": {"type": name}}
    assert wrong(schema, {"x": good}) == []
    assert len(wrong(schema, {"x": bad})) == 1


def test_any_takes_anything_but_nothing() -> None:
    assert wrong({"x": {"type": "any"}}, {"x": None}) == []
    assert wrong({"x": {"type": "any"}}, {}) == ["inputs.x: is missing"]


def test_all_that_is_wrong_is_told_with_its_path() -> None:
    schema = {"ids": {"type": "list<string>"}, "n": {"type": "int"}, "name": {"type": "string"}}
    assert sorted(wrong(schema, {"ids": ["a", 2, 3], "n": "1"})) == [
        "inputs.ids[1]: expected a string, got the number 2",
        "inputs.ids[2]: expected a string, got the number 3",
        'inputs.n: expected an integer, got "1"',
        "inputs.name: is missing; expected a string",
    ]


def test_input_may_be_left_out_where_the_schema_says_so_and_others_may_be_given() -> None:
    schema = {"a": {"type": "int", "required": False}, "b": {"type": "int?"}}
    assert wrong(schema, {}) == []
    assert wrong(schema, {"run_id": "x"}) == []
    assert len(wrong(schema, {"a": "x", "b": "y"})) == 2


def test_json_schema_is_checked_as_one() -> None:
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
    assert wrong(schema, {"n": 3, "who": {"name": "Ada"}}) == []
    assert sorted(wrong(schema, {"n": 0, "mode": "slow", "who": {}, "wat": 1})) == [
        'inputs.mode: expected "fast" or "safe", got "slow"',
        "inputs.n: expected an integer from 1 to 9, got the number 0",
        "inputs.wat: is not known; expected only mode, n, who",
        "inputs.who.name: is missing; expected a string",
    ]


def test_empty_schema_takes_any_object() -> None:
    assert wrong({}, {"anything": [1]}) == []
    assert wrong({}, ["no object"]) == ["inputs: expected an object, got a list"]
    assert wrong({}, None) == ["inputs: expected an object, got null"]


@pytest.mark.parametrize("name", ["type", "properties", "required", "anyOf", "$schema"])
def test_input_may_be_called_like_a_word_of_json_schema(name: str) -> None:
    schema = {name: {"type": "string"}}
    assert not is_json_schema(schema)
    assert wrong(schema, {name: "x"}) == []
    assert wrong(schema, {}) == [f"inputs.{name}: is missing; expected a string"]


def test_type_that_nobody_knows_is_refused_with_the_flow() -> None:
    known = "expected string, int, number, bool, object, list<…>, any"
    assert refused({"a": {"type": "strng"}, "b": {"type": "list<Volt>"}, "c": 5}) == [
        'inputs_schema.a.type: there is no type "strng"; did you mean string?',
        f'inputs_schema.b.type: there is no type "Volt"; {known}',
        'inputs_schema.c: expected an object with a "type", or a JSON Schema as a whole, got the number 5',
    ]


def test_json_schema_that_is_none_is_refused_with_the_flow() -> None:
    told = refused({"type": "object", "properties": {"a": {"type": "strng"}}})
    assert len(told) == 1
    assert told[0].startswith("inputs_schema: expected a JSON Schema: ")


def test_schema_elsewhere_is_never_fetched() -> None:
    told = refused({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    assert told[0].startswith("inputs_schema: expected a JSON Schema: ")


@pytest.mark.parametrize("value", ["\ud800", 10**400, {"\udfff": 1}])
def test_odd_values_are_answered(value: object) -> None:
    assert isinstance(wrong({"x": {"type": "any"}}, {"x": value}), list)


def test_type_that_goes_on_for_ever_is_refused() -> None:
    assert refused({"x": {"type": "list<" * 5000 + "int" + ">" * 5000}})[0].endswith("is nested too deeply")


def test_schema_that_multiplies_without_end_is_refused_before_it_is_tried() -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$defs": {**twice, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}
    assert "too long to be checked" in " ".join(refused(schema))


def test_inputs_that_are_too_much_for_their_schema_are_refused_before_they_are_tried() -> None:
    few = {"anyOf": [{"const": n} for n in range(1_000)]}
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": few}}}
    assert "too much to be checked" in " ".join(wrong(schema, {"all": [-1] * 10_000}))
