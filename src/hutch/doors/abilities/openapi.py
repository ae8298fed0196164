"""`/abilities/openapi.json`: what is served here, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from hutch._version import __version__
from hutch.doors.abilities.answers import CODES, STATUS
from hutch.doors.abilities.documents import MOST_DESCRIPTION, MOST_ID, MOST_KEYS, MOST_NAME
from hutch.doors.abilities.requests import KEY_HEADER, MOST_FOUND, MOST_LISTED
from hutch.doors.operations import Json, operation, query, response
from hutch.settings import Settings

_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_TRUE: Json = {"const": True}
_OR_NULL = ["string", "null"]

# By what every request, and every request with a body, can be refused for.
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "RATE_LIMITED", "INTERNAL_ERROR", "BUSY", "UNAVAILABLE")
_WITH_BODY = ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")

_DESCRIPTION = """\
API wrappers that run on the server, with secrets that their code never sees. Every path is also served below
`/api`. A user's key (`hk_…`) is always needed. An ability's code is in no answer. Of an executed ability the
status is that of the API that it called; `errorCode` tells whose failure it is."""


def document(settings: Settings) -> Json:
    execute = _operation(
        "Executes an ability",
        _ref("Executed"),
        ("NOT_FOUND", "MISSING_DEPENDENCIES", "MISSING_CREDENTIALS"),
        takes="Execution",
        parameters=[_ID],
    )
    # Any status may be that of the ability's API.
    for status, each in execute["responses"].items():
        if status != "200":
            each["content"]["application/json"]["schema"] = _ref("Unexecuted")
    execute["responses"]["default"] = response(
        "What the ability's API answered, or how the ability failed", _ref("Unexecuted")
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{settings.executor_name}: abilities",
            "version": __version__,
            "description": _DESCRIPTION,
        },
        "servers": [{"url": "/"}, {"url": "/api"}],
        "security": [{"key": []}],
        "paths": {
            "/abilities/{id}/execute": {"post": execute},
            "/my/abilities/{id}/execute": {"post": execute},
            "/abilities/search": {"get": _search()},
            "/abilities/{id}": {"get": _shown("Shows an ability of one's own, or a shared one")},
            "/my/abilities": {"get": _listed(), "post": _added()},
            "/my/abilities/{id}": _own(),
            "/my/credentials": {"get": _credentials(), "post": _keep_credential()},
            "/my/credentials/{domain}": _domain(),
            "/my/runs": {"get": _runs()},
            "/abilities/openapi.json": {
                "get": {
                    "summary": "This document",
                    "security": [],
                    "responses": {"200": response("OK", {"type": "object"})},
                }
            },
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "hk_…"}},
            "schemas": _schemas(),
        },
    }


# --- operations ---


def _search() -> Json:
    return _operation(
        "Finds abilities by what they do, the best first",
        _success({"count": _COUNT, "query": _TEXT, "abilities": _array("Ability")}),
        ("INVALID_REQUEST",),
        parameters=[query("q", _TEXT, required=True), query("top_k", _up_to(MOST_FOUND))],
    )


def _listed() -> Json:
    return _operation(
        "Lists one's own abilities, by id",
        _success({"count": _COUNT, "abilities": _array("Ability")}, {"next": _NEXT}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", _up_to(MOST_LISTED)), query("after", _TEXT)],
    )


def _added() -> Json:
    return _operation(
        "Keeps a new ability",
        _success({"ability": _ref("Ability")}),
        ("CONFLICT",),
        takes="NewAbility",
        status=201,
    )


def _shown(summary: str) -> Json:
    return _operation(summary, _success({"ability": _ref("Ability")}), ("NOT_FOUND",), parameters=[_ID])


def _own() -> Json:
    replaced = _operation(
        "Keeps a new version of one's own ability, or a first one (201)",
        _success({"ability": _ref("Ability")}),
        ("NOT_FOUND", "CONFLICT"),
        takes="NewAbility",
        parameters=[_ID],
    )
    replaced["responses"]["201"] = replaced["responses"]["200"]
    removed = _operation(
        "Removes it, with all its versions", _success({"ability_id": _TEXT}), ("NOT_FOUND",), parameters=[_ID]
    )
    return {"get": _shown("Shows one's own ability"), "put": replaced, "delete": removed}


def _credentials() -> Json:
    either = {
        "oneOf": [_array("Credential"), {"type": "object", "additionalProperties": _array("Credential")}]
    }
    return _operation(
        "Lists one's credentials, without their values",
        _success({"count": _COUNT, "credentials": either}, {"grouped": _TRUE}),
        parameters=[query("grouped", _FLAG)],
    )


def _keep_credential() -> Json:
    header = {"name": KEY_HEADER, "in": "header", "schema": _TEXT, "description": "For `encryptedValue`"}
    return _operation(
        "Keeps a credential, in the place of the one before",
        _success({"credential": _ref("Credential")}),
        takes="NewCredential",
        parameters=[header],
        status=201,
    )


def _domain() -> Json:
    domain = {"name": "domain", "in": "path", "required": True, "schema": _TEXT}
    shown = _operation(
        "Lists the credentials for a domain, without their values",
        _success({"domain": _TEXT, "count": _COUNT, "credentials": _array("Credential")}),
        ("INVALID_REQUEST",),
        parameters=[domain],
    )
    removed = _operation(
        "Removes them, or one of them",
        _success({"domain": _TEXT, "deletedCount": _COUNT}),
        ("INVALID_REQUEST",),
        parameters=[domain, query("key", _TEXT), query("type", _TEXT)],
    )
    return {"get": shown, "delete": removed}


def _runs() -> Json:
    return _operation(
        "Lists what was run with one's keys, the newest first",
        _success({"count": _COUNT, "runs": _array("Run")}, {"next": _NEXT}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", _up_to(MOST_LISTED)), query("before", _TEXT)],
    )


def _operation(
    summary: str,
    gives: Json,
    failures: Sequence[str] = (),
    *,
    takes: str | None = None,
    parameters: Sequence[Json] = (),
    status: int = 200,
) -> Json:
    return operation(
        summary,
        gives,
        (*_ALWAYS, *(_WITH_BODY if takes else ()), *failures),
        statuses=STATUS,
        failure=_failure,
        takes=None if takes is None else _ref(takes),
        parameters=parameters,
        status=status,
    )


_ID: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "maxLength": MOST_ID}}
_NEXT: Json = {"type": "string", "description": "There if there may be more: where the next list begins"}

# --- schemas ---


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _up_to(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}


def _object(required: Json, optional: Json | None = None, *, more: bool = False) -> Json:
    schema: Json = {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required]}
    return schema if more else {**schema, "additionalProperties": False}


def _success(required: Json, optional: Json | None = None) -> Json:
    return _object({"success": _TRUE, **required}, optional)


def _failure(codes: Sequence[str]) -> Json:
    told: Json = {"success": {"const": False}, "error": _TEXT}
    told |= {"errorCode": {"enum": sorted(codes)}, "executedAt": _TIME}
    return _object(
        told, {"problems": {**_TEXTS, "description": "Each begins with the field that it is about"}}
    )


def _schemas() -> Json:
    return {
        "Execution": _object(
            {},
            {
                "params": {"type": ["object", "null"], "description": "As the ability's input_schema says"},
                "transformCode": {"type": _OR_NULL, "description": "A JavaScript function of the body"},
            },
            more=True,
        ),
        "Result": _result(),
        "Executed": _success({"result": _ref("Result")}),
        "Unexecuted": _unexecuted(),
        "NewAbility": _new_ability(),
        "Ability": _ability(),
        "NewCredential": _new_credential(),
        "Credential": _credential(),
        "Run": _object(
            {
                "runId": _TEXT,
                "door": _TEXT,
                "label": {"type": _OR_NULL},
                "startedAt": _TIME,
                "durationMs": {"type": "number", "minimum": 0},
                "outcome": {"type": "string", "description": "`ok`, or the error's code"},
            }
        ),
    }


def _result() -> Json:
    return _object(
        {
            "statusCode": {"type": "integer"},
            "body": {"description": "Parsed JSON, or text"},
            "headers": {"type": "object", "additionalProperties": _TEXT},
            "executedAt": _TIME,
        },
        {
            "executionTimeMs": {"type": "number", "minimum": 0},
            "setCookie": _TEXTS,
            "truncated": _TRUE,
            "originalLength": _COUNT,
        },
    )


def _unexecuted() -> Json:
    login = _object({"id": _TEXT, "name": _TEXT, "description": _TEXT})
    return _object(
        {
            "success": {"const": False},
            "error": _TEXT,
            "errorCode": {"enum": sorted(CODES)},
            "executedAt": _TIME,
        },
        {
            "result": {"type": "object", "description": "As of a success, as far as there is one"},
            "errorLine": {"type": "integer", "minimum": 1, "description": "Where in its code it failed"},
            "credentialsExpired": _TRUE,
            "loginAbilities": {"type": "array", "items": login},
        },
        more=True,
    )


def _new_ability() -> Json:
    header = _object({"key": _TEXT, "value_code": _TEXT}, more=True)
    keys = {"type": "array", "items": _TEXT, "maxItems": MOST_KEYS}
    return _object(
        {
            "ability_id": {"type": "string", "maxLength": MOST_ID, "description": "In PUT that of the path"},
            "service_name": {"type": "string", "minLength": 1, "maxLength": MOST_NAME},
            "wrapper_code": {"type": "string", "minLength": 1, "description": "Shown to nobody, ever"},
        },
        {
            "ability_name": {"type": _OR_NULL, "maxLength": MOST_NAME},
            "description": {"type": _OR_NULL, "maxLength": MOST_DESCRIPTION},
            "static_headers": {
                "oneOf": [
                    {"type": "object", "additionalProperties": _TEXT},
                    {"type": "array", "items": header, "maxItems": MOST_KEYS},
                    {"type": "null"},
                ]
            },
            "dynamic_header_keys": keys,
            "requires_dynamic_headers": {"type": ["boolean", "null"]},
            "input_schema": {"type": ["object", "null"], "description": "JSON Schema of `params`"},
            "dependency_order": keys,
            "dependencies": {"type": ["object", "null"]},
        },
        more=True,
    )


def _ability() -> Json:
    return _object(
        {
            "ability_id": _TEXT,
            "ability_name": _TEXT,
            "service_name": _TEXT,
            "description": _TEXT,
            "input_schema": {"type": ["object", "null"]},
            "static_header_keys": _TEXTS,
            "dynamic_header_keys": _TEXTS,
            "requires_dynamic_headers": _FLAG,
            "dependency_order": _TEXTS,
            "version": {"type": "integer", "minimum": 1},
            "shared": _FLAG,
            "own": _FLAG,
            "created_at": _TIME,
            "updated_at": _TIME,
        }
    )


def _new_credential() -> Json:
    return _object(
        {"domain": _TEXT, "credentialKey": _TEXT},
        {
            "credentialType": {"enum": ["header", "cookie", "auth_token", "query", "body", None]},
            "value": {"type": _OR_NULL, "description": "Shown to nobody, ever"},
            "encryptedValue": {
                "type": _OR_NULL,
                "description": f"With {KEY_HEADER}, as its public client has it",
            },
        },
        more=True,
    )


def _credential() -> Json:
    return _object(
        {
            "credentialId": _TEXT,
            "domain": _TEXT,
            "credentialType": _TEXT,
            "credentialKey": _TEXT,
            "hint": {"type": "string", "maxLength": 4},
            "state": {"enum": ["active", "expired"]},
            "createdAt": _TIME,
            "updatedAt": _TIME,
        },
        {"expiredAt": _TIME, "cause": {"type": _OR_NULL}},
    )
