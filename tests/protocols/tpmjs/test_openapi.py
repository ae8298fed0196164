"""The TPMJS part of the OpenAPI document matches the routes, statuses, codes and real responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from tests.protocols.tpmjs.harness import DENO, SELF_TEST, TpmjsServer, call

from hutch.http.openapi import Json, openapi_document, resolve_response
from hutch.protocols.tpmjs.openapi import describe
from hutch.protocols.tpmjs.responses import FAILURE_KINDS
from hutch.protocols.tpmjs.routes import routes
from hutch.settings import Settings

KEY = "open"


def keyed_server(**settings: Any) -> TpmjsServer:
    return TpmjsServer(api_key=KEY, **settings)


def document(settings: Settings) -> Json:
    return openapi_document("", "", [describe(settings)], needs_key=settings.api_key is not None)


def check(openapi: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    jsonschema_rs.validator_for({**schema, "components": openapi["components"]}).validate(value)


async def test_documented_paths_and_methods_are_the_served_ones() -> None:
    server = keyed_server()
    queue: Any = object()
    made = routes(server.tools, server.access, server.settings, SELF_TEST, DENO, queue)
    served = {(route.path, next(iter(route.methods - {"HEAD"})).lower()) for route in made}
    documented = {
        (path, method) for path, item in document(server.settings)["paths"].items() for method in item
    }
    assert documented == served


def codes_in(schema: Any) -> Iterator[str]:
    """Yields every code of version 1.0 that a schema allows."""
    if isinstance(schema, dict):
        if "code" in schema.get("properties", {}):
            code = schema["properties"]["code"]
            yield from code.get("enum", [code.get("const")])
        for value in schema.values():
            yield from codes_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from codes_in(value)


def test_documented_codes_are_complete() -> None:
    documented = set(codes_in(document(keyed_server().settings)))
    assert documented == {kind.code for kind in FAILURE_KINDS.values()}


def test_documented_statuses_are_complete() -> None:
    paths = document(keyed_server().settings)["paths"]
    documented = {
        **paths["/execute-tool"]["post"]["responses"],
        **paths["/execute-async"]["post"]["responses"],
    }
    assert set(documented) == {"202", *(str(kind.status) for kind in FAILURE_KINDS.values())}


def test_document_says_which_errors_a_client_without_a_version_gets() -> None:
    header = "`X-TPMJS-Protocol-Version: 1.1`"
    assert f"{header} or no such header." in describe(TpmjsServer().settings).description
    structured = describe(TpmjsServer(tpmjs_string_errors=False).settings)
    assert f"{header}. Otherwise" in structured.description


def test_document_requires_a_key_only_if_the_server_does() -> None:
    without = document(TpmjsServer().settings)["paths"]["/execute-tool"]["post"]
    assert without["security"] == [{"key": []}, {}]
    assert "401" not in without["responses"]
    keyed = document(keyed_server().settings)["paths"]["/execute-tool"]["post"]
    assert keyed["security"] == [{"key": []}]


FAILURES = [call("fail", {"code": code}) for code, kind in FAILURE_KINDS.items() if kind.status == 200]
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
async def test_real_responses_match_the_document(version: str) -> None:
    server = keyed_server(max_body_bytes=1_000)
    openapi = document(server.settings)
    seen = set()
    headers = {"X_TPMJS_Protocol_Version": version}
    requests = [(path, body, {**headers, "Authorization": f"Bearer {KEY}"}) for path, body in CALLS]
    for path in ("/execute-tool", "/execute-batch", "/load-and-describe", "/validate-tool"):
        requests += [
            (path, {}, headers),
            (path, {}, {**headers, "Host": "evil.example"}),
            (path, {}, {**headers, "Authorization": f"Bearer {KEY}", "Content_Type": "text/plain"}),
        ]
    for path, body, sent in requests:
        response = await server.post(path, body, **sent)
        documented = resolve_response(
            openapi, openapi["paths"][path]["post"]["responses"][str(response.status_code)]
        )
        check(openapi, documented["content"]["application/json"]["schema"], response.json())
        seen.add((path, response.status_code))
    assert {status for _, status in seen} == {200, 400, 401, 403, 413, 415, 500, 503}
    limited = keyed_server(rate_limit=1)
    for path in ("/execute-tool", "/execute-tool"):
        response = await limited.post(path, call("echo"), Authorization=f"Bearer {KEY}", **headers)
    assert response.status_code == 429
    documented = resolve_response(openapi, openapi["paths"]["/execute-tool"]["post"]["responses"]["429"])
    check(openapi, documented["content"]["application/json"]["schema"], response.json())


async def test_info_matches_the_document() -> None:
    server = keyed_server(region="here", metadata={"a": "b"}, rate_limit=3)
    openapi = document(server.settings)
    for headers in ({}, {"Host": "evil.example"}):
        response = await server.client.get("http://127.0.0.1/info", headers=headers)
        documented = resolve_response(
            openapi, openapi["paths"]["/info"]["get"]["responses"][str(response.status_code)]
        )
        check(openapi, documented["content"]["application/json"]["schema"], response.json())


async def test_request_schema_accepts_and_refuses_what_the_server_does() -> None:
    openapi = document(keyed_server().settings)
    schema = {"$ref": "#/components/schemas/ToolExecution"}
    for right in (call("echo"), {**call("echo"), "env": None, "version": None, "params": None, "more": 1}):
        check(openapi, schema, right)
    for wrong in ([], {}, call(""), call("x", []), call("x", env={"A": 1}), {**call("x"), "version": 1}):
        with pytest.raises(jsonschema_rs.ValidationError):
            check(openapi, schema, wrong)
