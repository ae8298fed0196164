"""Cost bounds of schema validation."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.session.schema.cost import MAX_COST, schema_cost

TREE = {"type": "object", "properties": {"name": {"type": "string"}, "below": {"items": {"$ref": "#"}}}}
FILTER = {
    "properties": {
        "and": {"type": "array", "items": {"$ref": "#"}},
        "or": {"type": "array", "items": {"$ref": "#"}},
        "not": {"$ref": "#"},
        "field": {"enum": ["a", "b"]},
    }
}


def tree(depth: int) -> dict[str, Any]:
    return {"name": "x", "below": [tree(depth - 1)] if depth else []}


def filters(depth: int) -> dict[str, Any]:
    return {"and": [filters(depth - 1), {"field": "a"}]} if depth else {"field": "b"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {"a": [1] * 100_000}),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1] * 300_000}),
        ({"properties": {"a": {"type": "string", "maxLength": 9}}}, {"a": "x" * 1_000_000}),
        ({"properties": {"a": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}$"}}}, {"a": "0", "b": "x" * 90_000}),
        ({"properties": {"a": {"pattern": "^(?=.*[0-9]).{8,64}$"}}}, {"a": "abcdefgh1"}),
        ({"properties": {"a": {"enum": [f"x{at}" for at in range(5_000)]}}}, {"a": "x1", "b": [1, 2, 3]}),
        (TREE, tree(60)),
        (FILTER, filters(5)),
        (True, {"a": 1}),
    ],
    ids=["none", "many", "long", "pattern", "look-ahead", "choices", "tree", "filter", "all"],
)
def test_ordinary_schemas_are_cheap(schema: Any, value: Any) -> None:
    assert schema_cost(schema).cost_of(value) <= MAX_COST


def test_shared_schema_counts_each_time_it_is_used() -> None:
    definitions = {"a": {"type": "object"}}
    once = schema_cost({"$ref": "#/$defs/a", "$defs": definitions})
    often = schema_cost({"allOf": [{"$ref": "#/$defs/a"}] * 100, "$defs": definitions})
    assert often.cost_of({}) > 50 * once.cost_of({})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "refers to itself"),
        ({"$ref": "#/nowhere"}, "has no target"),
        ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, "not supported"),
        ({"properties": {"a": {"$id": "b", "$ref": "#"}}}, "not supported"),
    ],
)
def test_unsupported_schema_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema_cost(schema)


def test_exponential_recursion_is_too_costly() -> None:
    doubled = {"allOf": [{"properties": {"c": {"$ref": "#"}}}] * 2}
    value: dict[str, Any] = {}
    for _ in range(100):
        value = {"c": value}
    assert schema_cost(doubled).cost_of({"c": {}}) <= MAX_COST
    assert schema_cost(doubled).cost_of(value) > MAX_COST


def test_schema_with_many_patterns_is_refused_before_compiling_them() -> None:
    many = {f"p{n}": {"type": "string", "pattern": rf"^(\w{{50}}|\W{{50}})x{n}$"} for n in range(4_900)}
    with pytest.raises(ValueError, match="4900 patterns"):
        schema_cost({"type": "object", "properties": many})
    named = {f"^a{n}$": True for n in range(200)}
    with pytest.raises(ValueError, match="200 patterns"):
        schema_cost({"type": "object", "patternProperties": named})
