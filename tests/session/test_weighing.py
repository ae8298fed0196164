"""How much work a schema can make."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.session.weighing import MOST_WORK, weigh

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
def test_what_people_write_is_light(schema: Any, value: Any) -> None:
    assert weigh(schema).work(value) <= MOST_WORK


def test_what_is_shared_is_counted_as_often_as_it_is_meant() -> None:
    once = weigh({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}).work({})
    often = weigh({"allOf": [{"$ref": "#/$defs/a"}] * 100, "$defs": {"a": {"type": "object"}}}).work({})
    assert often > 50 * once


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "refers to itself"),
        ({"$ref": "#/nowhere"}, "leads nowhere"),
        ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, "not supported"),
        ({"properties": {"a": {"$id": "b", "$ref": "#"}}}, "not supported"),
    ],
)
def test_what_cannot_be_weighed_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weigh(schema)


def test_what_goes_beyond_all_depths_is_too_much() -> None:
    doubled = {"allOf": [{"properties": {"c": {"$ref": "#"}}}] * 2}
    value: dict[str, Any] = {}
    for _ in range(100):
        value = {"c": value}
    assert weigh(doubled).work({"c": {}}) <= MOST_WORK
    assert weigh(doubled).work(value) > MOST_WORK


def test_a_schema_of_many_patterns_is_refused_before_they_are_compiled() -> None:
    many = {f"p{n}": {"type": "string", "pattern": rf"^(\w{{50}}|\W{{50}})x{n}$"} for n in range(4_900)}
    with pytest.raises(ValueError, match="4900 patterns"):
        weigh({"type": "object", "properties": many})
    named = {f"^a{n}$": True for n in range(200)}
    with pytest.raises(ValueError, match="200 patterns"):
        weigh({"type": "object", "patternProperties": named})
