"""Builds the OpenAPI document of a server from the parts that its protocols describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import count
from typing import Any, Literal, NamedTuple

import msgspec

from hutch._version import __version__
from hutch.http.errors import ErrorKind

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "boolean"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIME: Json = {"type": "string", "format": "date-time"}
TEXTS: Json = {"type": "array", "items": TEXT}
LIMIT_NAME: Json = {"type": "string", "description": "Name of the limit of the caller that was reached"}
REASON: Json = {"type": "string", "description": "Code of the error of a suspended run or a session"}
TRUE: Json = {"const": True}
NEXT_PAGE: Json = {"type": "string", "description": "Start of the next page; present if there may be more"}
# Responses with these statuses have a Retry-After header.
_RETRY_STATUSES = (429, 503)
_WITH_BODY = ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")


class OperationBuilder:
    """Builds operations of a protocol from its error codes."""

    def __init__(
        self, kinds: Mapping[str, ErrorKind], always: Sequence[str], failure: Callable[[list[str]], Json]
    ) -> None:
        """`always` are the error codes that every request may get. `failure` builds the schema of an error
        from its codes.
        """
        self._status_by_code = {kind.code: kind.status for kind in kinds.values()}
        self._always = always
        self._failure = failure

    def __call__(
        self,
        summary: str,
        success: Json,
        codes: Sequence[str] = (),
        *,
        body: str | None = None,
        example: Any = None,
        parameters: Sequence[Json] = (),
        status: int = 200,
    ) -> Json:
        """Returns an operation. `success` is the schema of the response, `codes` are the operation's own
        error codes, `body` is the name of the request's schema, and `example` a body that matches it.
        """
        responses: Json = {str(status): response(HTTPStatus(status).phrase, success)}
        by_status: dict[int, list[str]] = {}
        for code in (*self._always, *(_WITH_BODY if body else ()), *codes):
            by_status.setdefault(self._status_by_code[code], []).append(code)
        for error_status, codes_of_status in sorted(by_status.items()):
            error = response(HTTPStatus(error_status).phrase, self._failure(codes_of_status))
            if error_status in _RETRY_STATUSES:
                error["headers"] = {"Retry-After": {"schema": COUNT}}
            responses[str(error_status)] = error
        described: Json = {"summary": summary, "parameters": [*parameters], "responses": responses}
        if body is not None:
            described["requestBody"] = request_body(body, example)
        return described


class ApiPart(NamedTuple):
    """The routes of one protocol, for the server's OpenAPI document."""

    tag: str
    description: str
    paths: Json
    schemas: Json
    access: Access = "key"
    """Access that operations without their own `security` require."""


Access = Literal["key", "user_key", "operator_key"]

_SECURITY_SCHEMES: Json = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "The operator's key (`HUTCH_API_KEY`), or a user's key with the scope of the protocol",
    },
    "user_key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "hk_…",
        "description": "A user's key, created with `hutch key add`",
    },
    "operator_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "The operator's key (`HUTCH_API_KEY`)",
    },
}


def openapi_document(title: str, description: str, parts: Sequence[ApiPart], *, needs_key: bool) -> Json:
    """Joins the parts to one document. `needs_key` is True if the operator has set a key."""
    paths: Json = {}
    schemas: Json = {}
    for part in parts:
        if same := schemas.keys() & part.schemas.keys():
            raise ValueError(f"{part.tag}: other parts have schemas with these names: {sorted(same)}")
        schemas |= part.schemas
        security: list[Json] = [{part.access: []}]
        if not needs_key and part.access != "user_key":
            security.append({})
        for path, item in part.paths.items():
            for method, operation in item.items():
                if method in paths.setdefault(path, {}):
                    raise ValueError(f"{part.tag}: another part has {method} {path}")
                paths[path][method] = {
                    "tags": [part.tag],
                    "operationId": _operation_id(method, path),
                    "security": security,
                    **operation,
                    "responses": {**operation["responses"]},
                }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": description},
        "servers": [{"url": "/"}],
        "tags": [{"name": part.tag, "description": part.description} for part in parts],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": _share_errors(paths),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def _share_errors(paths: Json) -> Json:
    """Moves error responses that several operations have in common out of the operations and replaces them by
    references, because they would be half of the document. Returns the moved responses by name.
    """
    uses: dict[bytes, list[tuple[Json, str]]] = {}
    for item in paths.values():
        for operation in item.values():
            for status, described in operation["responses"].items():
                if status >= "400" and status != "default":
                    key = msgspec.json.encode(described, order="deterministic")
                    uses.setdefault(key, []).append((operation["responses"], status))
    shared: Json = {}
    for places in uses.values():
        if len(places) > 1:
            responses, status = places[0]
            name = base = HTTPStatus(int(status)).phrase.title().replace(" ", "")
            for number in count(2):
                if name not in shared:
                    break
                name = f"{base}{number}"
            shared[name] = responses[status]
            for responses, status in places:
                responses[status] = {"$ref": f"#/components/responses/{name}"}
    return shared


def resolve_response(document: Json, described: Json) -> Json:
    """Returns a response of an operation. Follows the reference if it is a shared response."""
    name = described.get("$ref", "").rpartition("/")[2]
    found: Json = document["components"]["responses"][name] if name else described
    return found


def _operation_id(method: str, path: str) -> str:
    return "_".join([method, *re.findall(r"\w+", path)])


def request_body(schema: str, example: Any = None) -> Json:
    media: Json = {"schema": ref(schema)}
    if example is not None:
        media["example"] = example
    return {"required": True, "content": {"application/json": media}}


def response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def query(name: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def path_param(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": description}


# --- schemas ---


def failure(codes: Sequence[str]) -> Json:
    """Returns the schema of errors in the format that most protocols share."""
    optional = {"limit": LIMIT_NAME} if "RATE_LIMITED" in codes else {}
    if not {"NOT_FOUND", "CONFLICT"}.isdisjoint(codes):
        optional["reason"] = REASON
    error = object_of({"code": {"enum": sorted(codes)}, "message": TEXT}, optional)
    return object_of({"success": {"const": False}, "error": error})


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(name: str) -> Json:
    return {"type": "array", "items": ref(name)}


def up_to(maximum: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": maximum}


def object_of(required: Json, optional: Json | None = None, *, extra_fields: bool = False) -> Json:
    schema: Json = {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required]}
    return schema if extra_fields else {**schema, "additionalProperties": False}
