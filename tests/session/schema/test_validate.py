"""Compiled JSON Schemas: refused schemas, bounds, and paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hutch.session.schema.cost import MAX_COST
from hutch.session.schema.validate import (
    InvalidSchema,
    compile_schema,
    compile_untrusted,
    json_path,
    well_formed_value,
)


def untrusted(schema: Any, **options: bool) -> Any:
    return compile_untrusted(json.dumps(schema).encode(), **options)


@pytest.mark.parametrize("compiler", [compile_schema, lambda schema: untrusted(schema)[0]])
def test_compiled_schema_validates(compiler: Any) -> None:
    validator = compiler({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}})
    assert validator.is_valid({"a": 1})
    assert not validator.is_valid({"a": "1"})


@pytest.mark.parametrize("compiler", [compile_schema, untrusted])
@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"properties": {"a": {"type": 3}}}, ("properties", "a", "type"), "3 is not valid"),
        ({"pattern": "("}, ("pattern",), "regex"),
        ({"$ref": "https://schemas.invalid/a"}, (), "schemas.invalid"),
        ({"$ref": "file:///etc/passwd"}, (), "passwd"),
        ({"$ref": "#/nowhere"}, (), "nowhere"),
    ],
)
def test_invalid_schema_is_refused_with_its_path(
    compiler: Any, schema: Any, path: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InvalidSchema) as refused:
        compiler(schema)
    assert refused.value.path == path
    assert reason in refused.value.reason
    assert "\n" not in refused.value.reason


def test_untrusted_schema_has_the_cost_of_its_values() -> None:
    _, cost = untrusted({"anyOf": [{"items": {"minimum": number}} for number in range(500)]})
    assert cost.cost_of([1, 2]) < MAX_COST < cost.cost_of([1] * 100_000)


def test_patterns_of_untrusted_schemas_are_bounded() -> None:
    validator, _ = untrusted({"pattern": r"^(?:(a+)b?\1)*c$"})
    with pytest.raises(ValueError, match="backtracking"):
        validator.validate("a" * 40 + "!")


def test_formats_are_checked_on_request() -> None:
    schema = {"format": "date-time"}
    assert untrusted(schema)[0].is_valid("yesterday")
    assert not untrusted(schema, formats=True)[0].is_valid("yesterday")


def test_lone_surrogates_are_replaced_everywhere() -> None:
    value = {"a\ud800": ["\udfff", 1, None, {"b": "ok"}]}
    assert well_formed_value(value) == {"a\ufffd": ["\ufffd", 1, None, {"b": "ok"}]}


def test_path_quotes_names_that_are_not_identifiers() -> None:
    assert json_path(()) == "$"
    assert json_path(("items", 2, "odd key")) == "$.items[2]['odd key']"
    assert json_path(("a",), "params") == "params.a"
    assert len(json_path(["a"] * 1_000)) < 1_000
