"""Validation of an ability's parameters."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.abilities.harness import ability

from hutch.protocols.abilities import params
from hutch.protocols.abilities.definition import parse_definition


def problem(schema: dict[str, Any] | None, given: dict[str, Any]) -> str | None:
    return params.params_error(parse_definition(ability(input_schema=schema)).input_schema, given)


NESTED = {
    "type": "object",
    "properties": {
        "user": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
        "count": {"type": "integer"},
    },
    "required": ["count"],
}


def test_valid_parameters_have_no_error() -> None:
    assert problem(NESTED, {"count": 1, "user": {"tags": ["a"]}}) is None
    assert problem(None, {"anything": [1, None]}) is None


def test_error_names_the_path() -> None:
    found = problem(NESTED, {"user": {"tags": ["a", 2]}})
    assert found is not None
    assert "params.user.tags[1]: 2 is not of type" in found
    assert "params.count: is required" in found


def test_odd_names_are_quoted_in_paths() -> None:
    schema = {"properties": {"a b": {"type": "string"}}}
    assert str(problem(schema, {"a b": 1})).startswith("params['a b']: ")


def test_lone_surrogates_count_as_characters() -> None:
    schema = {"properties": {"a": {"type": "string", "minLength": 2}}}
    assert problem(schema, {"a": "\ud800x"}) is None
    assert problem(schema, {"a": "\ud800"}) is not None


def test_long_values_are_shortened_in_errors() -> None:
    found = problem({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 5_000})
    assert found is not None
    assert len(found) < 400


@pytest.mark.parametrize("count", [10, 300_000])
def test_reported_problems_are_limited(count: int) -> None:
    found = problem({"properties": {"a": {"items": {"type": "string"}}}}, {"a": [*range(count)]})
    assert found is not None
    assert found.count("is not of type") <= 5


def test_references_within_a_schema_work() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/text"}}, "$defs": {"text": {"type": "string"}}}
    assert problem(schema, {"a": "x"}) is None
    assert str(problem(schema, {"a": 1})).startswith("params.a: ")
