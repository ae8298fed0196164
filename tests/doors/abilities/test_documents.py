"""What can be an ability, and that everything that is wrong with one is told at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doors.abilities.towns import MARK, ability

from hutch.doors.abilities import documents
from hutch.doors.abilities.documents import StaticHeader
from hutch.errors import InvalidAbility


def problems(value: object, **more: Any) -> list[str]:
    with pytest.raises(InvalidAbility) as caught:
        documents.read(value, **more)
    return caught.value.problems


def test_an_ability_is_kept_as_it_was_written_and_read_back() -> None:
    document = documents.read(ability(dependency_order=["login"]))
    assert documents.decode(documents.encode(document)) == document
    assert (document.ability_name, document.dependency_order) == ("Get a user's profile", ["login"])


def test_code_shows_in_no_repr() -> None:
    headers = [{"key": "api.example.com::x", "value_code": f"() => '{MARK}'"}]
    document = documents.read(ability(static_headers=headers))
    assert MARK not in f"{document!r} {document.static_headers!r} {documents.as_row(document, 'user')!r}"


def test_everything_that_is_wrong_is_told_at_once_by_its_field() -> None:
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
def test_what_is_no_object_is_no_ability(value: object) -> None:
    (problem,) = problems(value)
    assert problem.startswith("body: expected an object, got ")


@pytest.mark.parametrize("value", ["", " ", "a\0b", "\ud800", 3, None, "a" * 201, "a b", "é", "-", "search"])
def test_ids_are_what_fits_in_an_address_and_hides_none_of_ours(value: object) -> None:
    (problem,) = problems(ability(ability_id=value))
    assert problem.startswith("ability_id: ")


def test_code_that_is_too_long_is_told_with_the_bound() -> None:
    (problem,) = problems(ability(wrapper_code="é" * 600), most_code=1_000)
    assert problem == "wrapper_code: has 1200 bytes; the most is 1000"


@pytest.mark.parametrize("value", ["a\r\nb", "a\0b", "\ud800", 3, None, "x" * 16_385])
def test_values_of_plain_static_headers_are_what_headers_can_have(value: object) -> None:
    (problem,) = problems(ability(static_headers={"X-A": value}))
    assert problem.startswith("static_headers['X-A']: ")


def test_static_headers_have_two_forms() -> None:
    plain = documents.read(ability(static_headers={"X-A": "it's", "api.example.com::X-B": ""}))
    assert plain.static_headers == {"X-A": "it's", "api.example.com::X-B": ""}
    coded = documents.read(ability(static_headers=[{"key": "api.example.com::x", "value_code": '() => "v"'}]))
    assert coded.static_headers == [StaticHeader("api.example.com::x", '() => "v"')]
    assert coded.static_header_keys == ["api.example.com::x"]


def test_missing_dependencies_are_known_by_either_name() -> None:
    missing = [{"ability_id": "a", "ability_name": "A"}, {"abilityId": "b"}, "c"]
    document = documents.read(ability(dependencies={"resolved": [], "missing": missing}))
    assert document.missing_dependencies == ["a", "b", "c"]


def test_what_is_left_out_or_null_has_a_default() -> None:
    given = {"ability_id": "x", "service_name": "s", "wrapper_code": "function wrapper() {}"}
    nothing = dict.fromkeys(set(documents.Document.__struct_fields__) - {*given, "missing_dependencies"})
    for value in (given, {**nothing, **given}):
        document = documents.read(value)
        assert (document.ability_name, document.requires_dynamic_headers) == ("x", False)
        assert document.input_schema is None
    assert documents.read({**given, "dynamic_header_keys": ["Cookie"]}).requires_dynamic_headers


def test_fields_of_other_programs_do_no_harm() -> None:
    documents.read(ability(health_score="9", request_method="GET", generated_at="now", output_schema={}))


def test_an_id_in_a_path_need_not_be_said_again_and_must_not_be_contradicted() -> None:
    nameless = ability()
    del nameless["ability_id"]
    assert documents.read(nameless, ability_id="known").ability_id == "known"
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
def test_input_schemas_that_cannot_be_used_are_refused_at_once(schema: object) -> None:
    (problem,) = problems(ability(input_schema=schema))
    assert problem.startswith("input_schema: ")
