"""`/openapi.json` describes what is served: its paths, its statuses, its codes, and real answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from tests.doors.tpmjs.scripted import DENO, VERDICT, Door, call

from hutch.doors.tpmjs.answers import KINDS
from hutch.doors.tpmjs.http import routes
from hutch.doors.tpmjs.openapi import document

KEY = "open"


def door(**settings: Any) -> Door:
    return Door(api_key=KEY, **settings)


def check(whole: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    jsonschema_rs.validator_for({**schema, "components": whole["components"]}).validate(value)


async def test_document_is_served_and_its_schemas_are_schemas() -> None:
    served = (await door().client.get("http://127.0.0.1/openapi.json")).json()
    assert served == document(door().settings)
    for schema in served["components"]["schemas"].values():
        jsonschema_rs.validator_for({**schema, "components": served["components"]})


async def test_paths_and_methods_are_those_that_are_served() -> None:
    here = door()
    made = routes(here.tools, here.gate, here.settings, VERDICT, DENO)
    served = {
        ("/health", "get"),
        *((each.path, next(iter(each.methods - {"HEAD"})).lower()) for each in made),
    }
    told = {(path, method) for path, item in document(here.settings)["paths"].items() for method in item}
    assert told == served | {(path, "options") for path, _ in served}


def codes_in(schema: Any) -> Iterator[str]:
    """Every code of 1.0 that a schema allows."""
    if isinstance(schema, dict):
        if "code" in schema.get("properties", {}):
            code = schema["properties"]["code"]
            yield from code.get("enum", [code.get("const")])
        for value in schema.values():
            yield from codes_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from codes_in(value)


def test_codes_are_those_that_there_are() -> None:
    told = set(codes_in(document(door().settings)))
    assert told == {kind.code for kind in KINDS.values()} | {"NOT_FOUND", "METHOD_NOT_ALLOWED"}


def test_statuses_are_those_that_there_are() -> None:
    told = document(door().settings)["paths"]["/execute-tool"]["post"]["responses"]
    assert set(told) == {str(kind.status) for kind in KINDS.values()}


def test_without_a_key_none_is_asked_for() -> None:
    without = document(Door().settings)
    assert without["security"] == []
    assert "401" not in without["paths"]["/execute-tool"]["post"]["responses"]
    assert document(door().settings)["security"] == [{"key": []}]


FAILURES = [call("fail", {"code": code}) for code, kind in KINDS.items() if kind.status == 200]
DESCRIBED_ONLY = {"schema_unavailable"}
CALLS: list[tuple[str, Any]] = [
    ("/execute-tool", call("echo")),
    ("/execute-tool", call("undefined")),
    ("/execute-tool", call("talk", {"lines": ["x"], "cut": True})),
    ("/execute-tool", call("crash")),
    ("/execute-tool", call("busy")),
    ("/execute-tool", call("unknown")),
    ("/execute-tool", call("fail", {"code": "internal"})),
    *(("/execute-tool", each) for each in FAILURES if each["params"]["code"] not in DESCRIBED_ONLY),
    *(("/load-and-describe", each) for each in FAILURES),
    *((path, call("echo")) for path in ("/load-and-describe", "/validate-tool")),
    *((path, call("busy")) for path in ("/load-and-describe", "/validate-tool")),
    ("/execute-batch", {"tools": [call("echo"), call("busy"), call("crash"), call("unknown"), FAILURES[0]]}),
    *(
        (path, body)
        for path in ("/execute-tool", "/execute-batch", "/validate-tool")
        for body in (None, {}, b"{")
    ),
    *((path, b" " * 2_000) for path in ("/execute-tool", "/execute-batch", "/validate-tool")),
]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_real_answers_are_as_described(version: str) -> None:
    here = door(max_body_bytes=1_000)
    whole = document(here.settings)
    seen = set()
    headers = {"X_TPMJS_Protocol_Version": version}
    asked = [(path, body, {**headers, "Authorization": f"Bearer {KEY}"}) for path, body in CALLS]
    for path in ("/execute-tool", "/execute-batch", "/load-and-describe", "/validate-tool"):
        asked += [
            (path, {}, headers),
            (path, {}, {**headers, "Host": "evil.example"}),
            (path, {}, {**headers, "Authorization": f"Bearer {KEY}", "Content_Type": "text/plain"}),
        ]
    for path, body, sent in asked:
        response = await here.post(path, body, **sent)
        told = whole["paths"][path]["post"]["responses"][str(response.status_code)]
        check(whole, told["content"]["application/json"]["schema"], response.json())
        seen.add((path, response.status_code))
    assert {status for _, status in seen} == {200, 400, 401, 403, 413, 415, 500, 503}
    limited = door(rate_limit=1)
    for path in ("/execute-tool", "/execute-tool"):
        response = await limited.post(path, call("echo"), Authorization=f"Bearer {KEY}", **headers)
    assert response.status_code == 429
    told = whole["paths"]["/execute-tool"]["post"]["responses"]["429"]
    check(whole, told["content"]["application/json"]["schema"], response.json())


async def test_public_answers_are_as_described() -> None:
    here = door(region="here", metadata={"a": "b"}, rate_limit=3)
    whole = document(here.settings)
    for path in ("/health", "/info", "/openapi.json"):
        for headers in ({}, {"Host": "evil.example"}):
            response = await here.client.get(f"http://127.0.0.1{path}", headers=headers)
            told = whole["paths"][path]["get"]["responses"][str(response.status_code)]
            check(whole, told["content"]["application/json"]["schema"], response.json())
    await here.gate.drain(1)
    response = await here.client.get("http://127.0.0.1/health")
    assert response.status_code == 503
    told = whole["paths"]["/health"]["get"]["responses"]["503"]
    check(whole, told["content"]["application/json"]["schema"], response.json())
    for path, method, name in (("/nowhere", "GET", "NotFound"), ("/info", "POST", "MethodNotAllowed")):
        response = await here.client.request(method, f"http://127.0.0.1{path}")
        schema = whole["components"]["responses"][name]["content"]["application/json"]["schema"]
        check(whole, schema, response.json())


async def test_schema_of_a_request_takes_what_is_taken_and_refuses_what_is_refused() -> None:
    whole = document(door().settings)
    schema = {"$ref": "#/components/schemas/Call"}
    for right in (call("echo"), {**call("echo"), "env": None, "version": None, "params": None, "more": 1}):
        check(whole, schema, right)
    for wrong in ([], {}, call(""), call("x", []), call("x", env={"A": 1}), {**call("x"), "version": 1}):
        with pytest.raises(jsonschema_rs.ValidationError):
            check(whole, schema, wrong)
