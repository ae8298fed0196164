"""Parsing of ability definitions. All problems are reported at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.abilities.harness import MARK, ability

from hutch.errors import InvalidAbility
from hutch.protocols.abilities.definition import (
    AbilityDefinition,
    StaticHeader,
    decode_definition,
    definition_row,
    encode_definition,
    parse_definition,
)


def problems(value: object, **more: Any) -> list[str]:
    with pytest.raises(InvalidAbility) as caught:
        parse_definition(value, **more)
    return caught.value.problems


def test_definition_survives_encoding() -> None:
    definition = parse_definition(ability(dependency_order=["login"]))
    assert decode_definition(encode_definition(definition)) == definition
    assert (definition.ability_name, definition.dependency_order) == ("Get a user's profile", ["login"])


def test_repr_contains_no_code() -> None:
    headers = [{"key": "api.example.com::x", "value_code": f"() => '{MARK}'"}]
    definition = parse_definition(ability(static_headers=headers))
    assert MARK not in f"{definition!r} {definition.static_headers!r} {definition_row(definition, 'user')!r}"


def test_every_problem_is_reported_with_its_field() -> None:
    found = problems(
        {
            "ability_id": "a/b",
            "ability_name": 3,
            "description": "x" * 20_001,
            "static_headers": [{"key": "x y", "value_code": " "}, 3, {"key": "a::b"}],
            "dynamic_header_keys": ["b b::Cookie", 1, "api.example.com::Cook ie"],
            "requires_dynamic_headers": "yes",
            "input_schema": {"type": "object", "properties": {"a": {"type": "strin"}}},
            "dependency_order": "x",
            "dependencies": {"missing": [{"abilityId": "q"}, {}]},
            "wraper_code": "x",
        }
    )
    assert [each.partition(": ")[0] for each in found] == [
        "ability_id",
        "ability_name",
        "service_name",
        "wrapper_code",
        "description",
        "static_headers[0].key",
        "static_headers[0].value_code",
        "static_headers[1]",
        "static_headers[2].value_code",
        "dynamic_header_keys[0]",
        "dynamic_header_keys[1]",
        "dynamic_header_keys[2]",
        "requires_dynamic_headers",
        "input_schema",
        "dependency_order",
        "dependencies.missing[1]",
        "wraper_code",
    ]
    assert "Did you mean wrapper_code?" in found[-1]
    assert "properties.a.type" in found[13]


@pytest.mark.parametrize("value", [None, [], "x", 3, True])
def test_body_must_be_an_object(value: object) -> None:
    (problem,) = problems(value)
    assert problem.startswith("body: expected an object, got ")


@pytest.mark.parametrize("value", ["", " ", "a\0b", "\ud800", 3, None, "a" * 201, "a b", "é", "-", "search"])
def test_invalid_or_reserved_id_is_refused(value: object) -> None:
    (problem,) = problems(ability(ability_id=value))
    assert problem.startswith("ability_id: ")


def test_long_code_is_refused_with_the_limit() -> None:
    (problem,) = problems(ability(wrapper_code="é" * 600), max_code_bytes=1_000)
    assert problem == "wrapper_code: has 1200 bytes; the maximum is 1000"


@pytest.mark.parametrize("value", ["a\r\nb", "a\0b", "\ud800", 3, None, "x" * 16_385])
def test_static_header_values_must_be_valid(value: object) -> None:
    (problem,) = problems(ability(static_headers={"X-A": value}))
    assert problem.startswith("static_headers['X-A']: ")


def test_static_headers_have_two_forms() -> None:
    plain = parse_definition(ability(static_headers={"X-A": "it's", "api.example.com::X-B": ""}))
    assert plain.static_headers == {"X-A": "it's", "api.example.com::X-B": ""}
    coded = parse_definition(
        ability(static_headers=[{"key": "api.example.com::x", "value_code": '() => "v"'}])
    )
    assert coded.static_headers == [StaticHeader("api.example.com::x", '() => "v"')]
    assert coded.static_header_keys == ["api.example.com::x"]


def test_missing_dependencies_have_either_name() -> None:
    missing = [{"ability_id": "a", "ability_name": "A"}, {"abilityId": "b"}, "c"]
    definition = parse_definition(ability(dependencies={"resolved": [], "missing": missing}))
    assert definition.missing_dependencies == ["a", "b", "c"]


def test_missing_or_null_fields_have_defaults() -> None:
    given = {"ability_id": "x", "service_name": "s", "wrapper_code": "function wrapper() {}"}
    nothing = dict.fromkeys(set(AbilityDefinition.__struct_fields__) - {*given, "missing_dependencies"})
    for value in (given, {**nothing, **given}):
        definition = parse_definition(value)
        assert (definition.ability_name, definition.requires_dynamic_headers) == ("x", False)
        assert definition.input_schema is None
    assert parse_definition({**given, "dynamic_header_keys": ["Cookie"]}).requires_dynamic_headers


def test_unknown_fields_are_ignored() -> None:
    parse_definition(ability(health_score="9", request_method="GET", generated_at="now", output_schema={}))


def test_id_in_the_path_is_optional_in_the_body_and_must_match() -> None:
    nameless = ability()
    del nameless["ability_id"]
    assert parse_definition(nameless, ability_id="known").ability_id == "known"
    (problem,) = problems(ability(), ability_id="known")
    assert problem.startswith("ability_id: expected 'known' as in the path")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"$ref": "https://example.com/schema.json"},
        {"properties": {"a": {"pattern": "("}}},
        {"enum": ["x"] * 30_000},
        "{}",
    ],
)
def test_unusable_input_schema_is_refused(schema: object) -> None:
    (problem,) = problems(ability(input_schema=schema))
    assert problem.startswith("input_schema: ")


def test_produced_credentials_have_default_kinds() -> None:
    produces = {
        "a.example::authorization": "body.token",
        "a.example::Cookie": "headers.x-cookie",
        "a.example::X-Key": "body.keys[0].value",
        "a.example::key": {"from": "cookies.key", "kind": "query"},
    }
    parsed = parse_definition(ability(produces=produces)).produces
    assert [each.kind for each in parsed] == ["auth_token", "cookie", "header", "query"]
    assert parsed[3].path == "cookies.key"


@pytest.mark.parametrize(
    "produces",
    [
        [],
        {"Authorization": "body.token"},
        {"a.example::X": "token"},
        {"a.example::X": "body."},
        {"a.example::X": "headers"},
        {"a.example::X": 3},
        {"a.example::X": {"from": "body", "kind": "secret"}},
    ],
)
def test_invalid_produced_credential_is_refused(produces: object) -> None:
    assert problems(ability(produces=produces))[0].startswith("produces")


def test_kinds_of_credentials_are_checked_and_kept() -> None:
    base = {
        "ability_id": "a",
        "service_name": "x.example",
        "wrapper_code": "export const wrapper = 1",
        "dynamic_header_keys": ["x.example::key"],
    }
    kinds = {"x.example::key": "query"}
    assert parse_definition({**base, "credential_kinds": kinds}).credential_kinds == kinds
    with pytest.raises(InvalidAbility) as refused:
        parse_definition({**base, "credential_kinds": {"x.example::other": "path"}})
    assert "expected a key of dynamic_header_keys" in str(refused.value)
    assert "expected one of header" in str(refused.value)
