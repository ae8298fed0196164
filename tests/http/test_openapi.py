"""OpenAPI operations that are built from error tables."""

from __future__ import annotations

from typing import Any

from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import COUNT, TEXT, OperationBuilder, object_of, openapi_document, query, ref

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


def test_document_has_both_prefixes_and_the_key() -> None:
    made = openapi_document("Name", "Text", {"/x": {}}, {"schemas": {"A": TEXT}})
    assert made["servers"] == [{"url": "/"}, {"url": "/api"}]
    assert made["security"] == [{"key": []}]
    assert made["components"] == {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "hk_…"}},
        "schemas": {"A": TEXT},
    }
