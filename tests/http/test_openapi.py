"""Building of OpenAPI operations from the tables of error codes."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import (
    COUNT,
    TEXT,
    ApiPart,
    OperationBuilder,
    object_of,
    openapi_document,
    query,
    ref,
    resolve_response,
    response,
)

build = OperationBuilder(ERROR_KINDS, ("BUSY", "UNAVAILABLE"), lambda codes: {"enum": codes})


def schemas(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        status: each["content"]["application/json"]["schema"]
        for status, each in operation["responses"].items()
    }


def test_codes_are_grouped_by_status() -> None:
    operation = build("Does it", TEXT, ("NOT_FOUND", "RATE_LIMITED"), parameters=[query("n", COUNT)])
    assert schemas(operation) == {
        "200": TEXT,
        "404": {"enum": ["NOT_FOUND"]},
        "429": {"enum": ["RATE_LIMITED"]},
        "503": {"enum": ["BUSY", "UNAVAILABLE"]},
    }
    retried = {status for status, each in operation["responses"].items() if "headers" in each}
    assert retried == {"429", "503"}
    assert operation["parameters"] == [{"name": "n", "in": "query", "required": False, "schema": COUNT}]
    assert "requestBody" not in operation


def test_operation_with_a_body_has_the_errors_of_the_body_reader() -> None:
    operation = build("Stores it", TEXT, body="New", status=201)
    assert set(schemas(operation)) == {"201", "400", "413", "415", "503"}
    assert operation["requestBody"]["content"]["application/json"]["schema"] == ref("New")


def test_object_refuses_other_fields_unless_allowed() -> None:
    assert object_of({"a": TEXT}, {"b": TEXT}) == {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert "additionalProperties" not in object_of({}, extra_fields=True)


def test_document_joins_parts_and_adds_tag_id_and_security() -> None:
    plain: dict[str, Any] = {"responses": {}}
    first = ApiPart("One", "The first", {"/x/{id}": {"get": plain}}, {"X": TEXT})
    paths = {"/x/{id}": {"put": plain}, "/y": {"get": {**plain, "security": []}}}
    second = ApiPart("Two", "", paths, {"Y": TEXT}, "user_key")
    made = openapi_document("Name", "Text", [first, second], needs_key=False)
    assert made["tags"] == [{"name": "One", "description": "The first"}, {"name": "Two", "description": ""}]
    assert made["paths"]["/x/{id}"] == {
        "get": {**plain, "tags": ["One"], "operationId": "get_x_id", "security": [{"key": []}, {}]},
        "put": {**plain, "tags": ["Two"], "operationId": "put_x_id", "security": [{"user_key": []}]},
    }
    assert made["paths"]["/y"]["get"]["security"] == []
    assert made["components"]["schemas"] == {"X": TEXT, "Y": TEXT}


@pytest.mark.parametrize(("path", "schema"), [("/x", "B"), ("/y", "A")])
def test_parts_with_the_same_operation_or_schema_are_refused(path: str, schema: str) -> None:
    item: dict[str, Any] = {"get": {"responses": {}}}
    parts = [ApiPart("One", "", {"/x": item}, {"A": TEXT}), ApiPart("Two", "", {path: item}, {schema: TEXT})]
    with pytest.raises(ValueError, match="Two"):
        openapi_document("", "", parts, needs_key=True)


def test_error_that_several_operations_have_is_shared() -> None:
    error, other = response("Not Found", TEXT), response("Not Found", COUNT)
    ok = response("OK", TEXT)
    paths = {
        name: {"get": {"responses": {"200": ok, "404": described}}}
        for name, described in {"/a": error, "/b": error, "/c": other}.items()
    }
    made = openapi_document("", "", [ApiPart("One", "", paths, {})], needs_key=True)
    shared = {"$ref": "#/components/responses/NotFound"}
    assert [made["paths"][name]["get"]["responses"]["404"] for name in paths] == [shared, shared, other]
    assert made["components"]["responses"] == {"NotFound": error}
    assert resolve_response(made, shared) == error
    assert resolve_response(made, other) == other
    assert made["paths"]["/a"]["get"]["responses"]["200"] == ok
