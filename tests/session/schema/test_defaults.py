"""Defaults of JSON Schemas."""

from __future__ import annotations

from typing import Any

from hutch.session.schema.defaults import apply_defaults


def test_missing_properties_get_defaults_and_others_stay() -> None:
    schema = {
        "properties": {
            "a": {"default": 1},
            "b": {"default": None},
            "c": {"properties": {"d": {"default": 2}}},
        },
        "allOf": [{"properties": {"e": {"default": [3]}}}],
        "anyOf": [{"properties": {"f": {"default": 4}}}],
    }
    value = {"a": 0, "c": {}, "x": "y"}
    assert apply_defaults(schema, value) == {"a": 0, "b": None, "c": {"d": 2}, "e": [3], "x": "y"}
    assert value == {"a": 0, "c": {}, "x": "y"}
    assert apply_defaults({"properties": {"a": {"default": 1}}}, ["not an object"]) == ["not an object"]


def test_recursive_schema_ends() -> None:
    schema: dict[str, Any] = {
        "$ref": "#",
        "properties": {"a": {"$ref": "#", "default": {}}},
        "allOf": [{"$ref": "#"}],
    }
    assert apply_defaults(schema, {"a": {}}) == {"a": {"a": {}}}
    assert apply_defaults(schema, {}) == {"a": {}}
