"""Checks of parameters against the JSON Schema of a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.problems import MAX_PROBLEMS, MORE_PROBLEMS
from hutch.protocols.tpmjs.params import guest_problems, parse_params, warnings_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "q": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "default": 10},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "required": ["q", "limit"],
    "$defs": {"tag": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}},
}
TEXT = json.dumps(SCHEMA)


def test_warnings_name_every_mismatch() -> None:
    assert warnings_of(TEXT, {"limit": 0, "tags": ["a"]}) == [
        "params.q: is missing; expected a string",
        "params.limit: expected an integer ≥ 1, got the number 0",
        'params.tags[0]: expected an object, got "a"',
    ]
    assert warnings_of(TEXT, {"q": "x", "limit": 1, "more": 1}) == []


def test_defaults_are_applied_before_the_check() -> None:
    problems, complete = parse_params(TEXT, {"q": "x", "tags": [{}, {"name": "y"}]})
    assert problems == []
    assert complete == {"q": "x", "limit": 10, "tags": [{"name": "x"}, {"name": "y"}]}


def test_number_of_problems_is_bounded() -> None:
    schema = json.dumps({"properties": {"a": {"items": {"type": "string"}}}})
    warnings = warnings_of(schema, {"a": [1] * 200})
    assert len(warnings) == MAX_PROBLEMS + 1
    assert warnings[-1] == MORE_PROBLEMS
    listed = guest_problems(["x" * 5_000] * 60 + [1, None])
    assert (len(listed), listed[-1]) == (MAX_PROBLEMS + 1, MORE_PROBLEMS)
    assert max(map(len, listed)) <= 1_000
    assert guest_problems({"not": "a list"}) == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "the tool's schema is not JSON"),
        ('{"type": "no such type"}', "the tool's schema is not valid: type: "),
        (json.dumps({"$ref": "#/nowhere"}), "the tool's schema is not valid: $ref: "),
        (json.dumps({"description": "x" * 20_000}), "the tool's schema has more than 16384 bytes"),
        (
            json.dumps({"additionalProperties": {"items": {"enum": [*range(20)]}}}),
            "they are too large, or the tool's schema is too complex",
        ),
    ],
)
def test_schema_that_cannot_be_checked_is_named(schema: str, reason: str) -> None:
    params = {f"p{n}": [0] * 1_000 for n in range(30)}
    [warning] = warnings_of(schema, params)
    assert warning.startswith(f"params: not checked, because {reason}")
    [problem], unchanged = parse_params(schema, params)
    assert problem.startswith(f"params: cannot be checked, because {reason}")
    assert unchanged is params


@repeat_on_stall
async def test_hostile_schemas_do_not_block_the_event_loop() -> None:
    warnings_of(TEXT, {})  # import the validator first, because its import would count as a stall
    recursive: dict[str, Any] = {
        "properties": {"a": {"$ref": "#", "default": {}}},
        "allOf": [{"$ref": "#/x"}],
    }
    recursive["x"] = {"items": {"$ref": "#"}}
    hostile = [
        {"properties": {f"p{n}": {"pattern": f"^(a|b{n})+{{1,50}}$"} for n in range(90)}},
        {"anyOf": [{"required": [f"k{n}"], "properties": {"k": {"const": n}}} for n in range(250)]},
        recursive,
    ]
    nested: dict[str, Any] = {}
    for _ in range(100):
        nested = {"a": nested}
    for schema in hostile:
        async with LoopStalls() as stalls:
            parse_params(json.dumps(schema), {"p1": "a" * 10_000, "k": -1, **nested})
        stalls.assert_short(schema)
