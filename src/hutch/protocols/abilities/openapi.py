"""OpenAPI description of the Abilities protocol."""

from __future__ import annotations

from collections.abc import Sequence

from hutch.http.openapi import (
    COUNT,
    FLAG,
    LIMIT_NAME,
    NEXT_PAGE,
    TEXT,
    TEXTS,
    TIME,
    TRUE,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    header,
    object_of,
    path_param,
    query,
    ref,
    response,
    up_to,
)
from hutch.protocols.abilities.definition import (
    MAX_DESCRIPTION_CHARS,
    MAX_ID_CHARS,
    MAX_ITEMS,
    MAX_NAME_CHARS,
)
from hutch.protocols.abilities.requests import (
    CREDENTIAL_KEY_HEADER,
    MAX_NAMES,
    MAX_PAGE_SIZE,
    MAX_SEARCH_RESULTS,
    MAX_STREAMED_CREDENTIALS,
)
from hutch.protocols.abilities.responses import ABILITY_ERRORS, ERROR_CODES, camel_case
from hutch.vault.credentials import KINDS

_OR_NULL = ["string", "null"]

# Error codes that every request may return.
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "RATE_LIMITED", "INTERNAL_ERROR", "BUSY", "UNAVAILABLE")

_DESCRIPTION = """\
API wrappers that run on the server, with secrets that their code never sees. Every path is also served below
`/api`. A user's key (`hk_…`) is always required. An ability's code is never returned. After an
execution, the status is that of the API that it called; `errorCode` shows whether the API or Hutch failed."""


_EXAMPLE: Json = {
    "ability_id": "get_profile",
    "service_name": "api.example.com",
    "description": "Returns the profile of a user.",
    "dynamic_header_keys": ["api.example.com::Authorization"],
    "input_schema": {"type": "object", "properties": {"username": TEXT}, "required": ["username"]},
    "wrapper_code": "export const wrapper = ({ username }) =>"
    " fetch(`https://api.example.com/users/${encodeURIComponent(username)}`)",
}


def describe() -> ApiPart:
    execute = _operation(
        "Executes an ability",
        ref("ExecutedAbility"),
        ("NOT_FOUND", "MISSING_DEPENDENCIES", "MISSING_CREDENTIALS"),
        body="AbilityExecution",
        example={"params": {"username": "ada"}, "transformCode": "(data) => ({ name: data.name })"},
        parameters=[_ID],
    )
    # Use one schema for all error statuses, because the ability's API may return the same statuses as Hutch
    # itself.
    for status, described in execute["responses"].items():
        if status != "200":
            described["content"]["application/json"]["schema"] = ref("FailedAbility")
    execute["responses"]["default"] = response(
        "Error of the ability's API or of the ability", ref("FailedAbility")
    )
    paths = {
        "/abilities/{id}/execute": {"post": execute},
        "/my/abilities/{id}/execute": {"post": execute},
        "/abilities/search": {"get": _search()},
        "/public/abilities": {"get": _search_shared()},
        "/abilities/{id}": {"get": _show("Shows your ability, or a shared one")},
        "/my/abilities": {"get": _list(), "post": _add()},
        "/my/abilities/{id}": _own_ability(),
        "/my/abilities/{id}/shares": _shares(),
        "/my/groups": {"get": _groups()},
        "/my/credentials": {"get": _credentials(), "post": _store_credential()},
        "/my/credentials/stream": {"post": _store_credentials()},
        "/my/credentials/{domain}": _domain(),
        "/my/runs": {"get": _runs()},
    }
    return ApiPart("Abilities", _DESCRIPTION, paths, _schemas(), access="user_key")


# --- operations ---


def _search() -> Json:
    return _operation(
        "Searches abilities, best match first",
        _SEARCH_RESULTS,
        ("INVALID_REQUEST",),
        parameters=[
            query("q", TEXT, required=True),
            query("top_k", up_to(MAX_SEARCH_RESULTS)),
            query("domains", TEXT),
        ],
    )


def _search_shared() -> Json:
    return _operation(
        "Searches shared abilities, best match first",
        _SEARCH_RESULTS,
        ("INVALID_REQUEST",),
        parameters=[query("q", TEXT, required=True), query("limit", up_to(MAX_SEARCH_RESULTS))],
    )


def _list() -> Json:
    return _operation(
        "Lists your abilities by id",
        _success({"count": COUNT, "abilities": array_of("Ability")}, {"next": NEXT_PAGE}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", up_to(MAX_PAGE_SIZE)), query("after", TEXT)],
    )


def _add() -> Json:
    return _operation(
        "Stores a new ability",
        _success({"ability": ref("Ability")}),
        ("CONFLICT",),
        body="NewAbility",
        example=_EXAMPLE,
        status=201,
    )


def _show(summary: str) -> Json:
    return _operation(summary, _success({"ability": ref("Ability")}), ("NOT_FOUND",), parameters=[_ID])


def _own_ability() -> Json:
    replaced = _operation(
        "Stores a new version of your ability, or creates it (201)",
        _success({"ability": ref("Ability")}),
        ("NOT_FOUND", "CONFLICT"),
        body="NewAbility",
        example=_EXAMPLE,
        parameters=[_ID],
    )
    replaced["responses"]["201"] = replaced["responses"]["200"]
    removed = _operation(
        "Deletes your ability with all its versions",
        _success({"ability_id": TEXT, "abilityId": TEXT}),
        ("NOT_FOUND",),
        parameters=[_ID],
    )
    return {"get": _show("Shows your ability"), "put": replaced, "delete": removed}


def _shares() -> Json:
    shares = _success({"count": COUNT, "shares": array_of("Share")})
    shared = _operation(
        "Shares your ability with users, and with groups that you belong to",
        shares,
        ("NOT_FOUND",),
        body="NewShares",
        example={"users": ["ann"], "groups": ["support"]},
        parameters=[_ID],
    )
    removed = _operation(
        "Stops sharing your ability with a user or a group",
        shares,
        ("NOT_FOUND", "INVALID_REQUEST"),
        parameters=[_ID, query("user", TEXT), query("group", TEXT)],
    )
    listed = _operation(
        "Lists the users and groups that can run your ability", shares, ("NOT_FOUND",), parameters=[_ID]
    )
    return {"get": listed, "post": shared, "delete": removed}


def _groups() -> Json:
    group = object_of({"name": TEXT})
    return _operation(
        "Lists the groups that you belong to",
        _success({"count": COUNT, "groups": {"type": "array", "items": group}}),
    )


def _credentials() -> Json:
    either = {
        "oneOf": [array_of("Credential"), {"type": "object", "additionalProperties": array_of("Credential")}]
    }
    return _operation(
        "Lists your credentials without their values",
        _success({"count": COUNT, "credentials": either}, {"grouped": TRUE}),
        parameters=[query("grouped", FLAG)],
    )


def _store_credential() -> Json:
    key = header(CREDENTIAL_KEY_HEADER, TEXT, "For `encryptedValue`")
    return _operation(
        "Stores or replaces a credential",
        _success({"credential": ref("Credential")}),
        body="NewCredential",
        example={"domain": "api.example.com", "credentialKey": "Authorization", "value": "Bearer …"},
        parameters=[key],
        status=201,
    )


def _store_credentials() -> Json:
    key = header(CREDENTIAL_KEY_HEADER, TEXT, "Without it, encrypted values are stored unchanged")
    return _operation(
        "Stores or replaces credentials of one domain",
        _success({"count": COUNT, "credentials": array_of("Credential")}),
        body="NewCredentials",
        example={"domain": "api.example.com", "credentials": [{"key": "Authorization", "value": "Bearer …"}]},
        parameters=[key],
        status=201,
    )


def _domain() -> Json:
    domain = path_param("domain", TEXT)
    list_domain = _operation(
        "Lists your credentials for a domain without their values",
        _success({"domain": TEXT, "count": COUNT, "credentials": array_of("Credential")}),
        ("INVALID_REQUEST",),
        parameters=[domain],
    )
    removed = _operation(
        "Deletes your credentials for a domain, or one of them",
        _success({"domain": TEXT, "deletedCount": COUNT}),
        ("INVALID_REQUEST",),
        parameters=[domain, query("key", TEXT), query("type", TEXT)],
    )
    return {"get": list_domain, "delete": removed}


def _runs() -> Json:
    return _operation(
        "Lists runs started with your keys, newest first",
        _success({"count": COUNT, "runs": array_of("AbilityRun")}, {"next": NEXT_PAGE}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", up_to(MAX_PAGE_SIZE)), query("before", TEXT)],
    )


_ID = path_param("id", {"type": "string", "maxLength": MAX_ID_CHARS})

# --- schemas ---


def _success(required: Json, optional: Json | None = None) -> Json:
    return object_of({"success": TRUE, **required}, optional)


_PROBLEMS: Json = {
    "problems": {**TEXTS, "description": "Each starts with the name of the field"},
    "limit": LIMIT_NAME,
}


def _failure(codes: Sequence[str]) -> Json:
    error = object_of({"code": {"enum": sorted(codes)}, "message": TEXT}, _PROBLEMS)
    return object_of({"success": {"const": False}, "error": error})


_NAMES: Json = {"type": ["array", "null"], "items": TEXT, "maxItems": MAX_NAMES}
_SEARCH_RESULTS = _success(
    {"count": COUNT, "query": TEXT, "abilities": array_of("Ability"), "results": array_of("Ability")}
)
_operation = OperationBuilder(ABILITY_ERRORS, _ALWAYS, _failure)


def _schemas() -> Json:
    return {
        "AbilityExecution": object_of(
            {},
            {
                "params": {
                    "type": ["object", "null"],
                    "description": "Validated against the ability's input_schema",
                },
                "transformCode": {
                    "type": _OR_NULL,
                    "description": "JavaScript function that is applied to the body",
                },
            },
            extra_fields=True,
        ),
        "AbilityResult": _result(),
        "ExecutedAbility": _success({"result": ref("AbilityResult")}),
        "FailedAbility": _unexecuted(),
        "NewAbility": _new_ability(),
        "Ability": _ability(),
        "NewShares": object_of({}, {"users": _NAMES, "groups": _NAMES}, extra_fields=True),
        "Share": object_of({"createdAt": TIME}, {"user": TEXT, "group": TEXT}),
        "NewCredential": _new_credential(),
        "NewCredentials": _new_credentials(),
        "Credential": _credential(),
        "AbilityRun": object_of(
            {
                "runId": TEXT,
                "door": TEXT,
                "label": {"type": _OR_NULL},
                "startedAt": TIME,
                "durationMs": {"type": "number", "minimum": 0},
                "outcome": {"type": "string", "description": "`ok`, or the error's code"},
            }
        ),
    }


def _result() -> Json:
    return object_of(
        {
            "statusCode": {"type": "integer"},
            "body": {"description": "Parsed JSON, or text"},
            "headers": {"type": "object", "additionalProperties": TEXT},
            "abilityName": TEXT,
            "domain": {"type": _OR_NULL, "description": "Host of the API, if it is known"},
            "executedAt": TIME,
        },
        {
            "executionTimeMs": {"type": "number", "minimum": 0},
            "setCookie": TEXTS,
            "storedCredentials": TEXTS,
            "truncated": TRUE,
            "originalLength": COUNT,
        },
    )


def _unexecuted() -> Json:
    login = object_of({"id": TEXT, "name": TEXT, "description": TEXT})
    return object_of(
        {
            "success": {"const": False},
            "error": TEXT,
            "errorCode": {"enum": sorted(ERROR_CODES)},
            "executedAt": TIME,
        },
        {
            "result": {"type": "object", "description": "As in a success, with the fields that are known"},
            "errorLine": {"type": "integer", "minimum": 1, "description": "Line of the wrapper's code"},
            **_PROBLEMS,
            "credentialsExpired": TRUE,
            "loginAbilities": {"type": "array", "items": login},
        },
        extra_fields=True,
    )


def _new_ability() -> Json:
    static_header = object_of({"key": TEXT, "value_code": TEXT}, extra_fields=True)
    keys = {"type": "array", "items": TEXT, "maxItems": MAX_ITEMS}
    return object_of(
        {
            "ability_id": {
                "type": "string",
                "maxLength": MAX_ID_CHARS,
                "description": "In PUT, the same as in the path",
            },
            "service_name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
            "wrapper_code": {"type": "string", "minLength": 1, "description": "Never returned"},
        },
        {
            "ability_name": {"type": _OR_NULL, "maxLength": MAX_NAME_CHARS},
            "description": {"type": _OR_NULL, "maxLength": MAX_DESCRIPTION_CHARS},
            "static_headers": {
                "oneOf": [
                    {"type": "object", "additionalProperties": TEXT},
                    {"type": "array", "items": static_header, "maxItems": MAX_ITEMS},
                    {"type": "null"},
                ]
            },
            "dynamic_header_keys": keys,
            "requires_dynamic_headers": {"type": ["boolean", "null"]},
            "credential_kinds": {
                "type": ["object", "null"],
                "description": "Kinds of the credentials, by key",
                "additionalProperties": {"enum": [*KINDS]},
            },
            "input_schema": {"type": ["object", "null"], "description": "JSON Schema of `params`"},
            "dependency_order": keys,
            "dependencies": {"type": ["object", "null"]},
            "produces": {
                "type": ["object", "null"],
                "description": "Parts of the response that are stored as credentials",
            },
        },
        extra_fields=True,
    )


def _ability() -> Json:
    fields = {
        "ability_id": TEXT,
        "ability_name": TEXT,
        "service_name": TEXT,
        "description": TEXT,
        "input_schema": {"type": ["object", "null"]},
        "static_header_keys": TEXTS,
        "dynamic_header_keys": TEXTS,
        "requires_dynamic_headers": FLAG,
        "credential_kinds": {"type": "object"},
        "dependency_order": TEXTS,
        "produces": {"type": "object"},
        "version": {"type": "integer", "minimum": 1},
        "shared": FLAG,
        "shared_by": {"type": _OR_NULL, "description": "The user who shares it with you by name"},
        "own": FLAG,
        "created_at": TIME,
        "updated_at": TIME,
    }
    more = {"dynamicHeadersRequired": FLAG, "domain": {"type": _OR_NULL}}
    return object_of({**fields, **{camel_case(name): schema for name, schema in fields.items()}, **more})


def _new_credential() -> Json:
    return object_of(
        {"domain": TEXT, "credentialKey": TEXT},
        {
            "credentialType": {"enum": ["header", "cookie", "auth_token", "query", "body", None]},
            "value": {"type": _OR_NULL, "description": "Never returned"},
            "encryptedValue": {
                "type": _OR_NULL,
                "description": f"Encrypted by the public client with the key in {CREDENTIAL_KEY_HEADER}",
            },
        },
        extra_fields=True,
    )


def _new_credentials() -> Json:
    credential = object_of(
        {"key": TEXT},
        {"type": {"type": _OR_NULL}, "value": {"type": _OR_NULL}, "encryptedValue": {"type": _OR_NULL}},
        extra_fields=True,
    )
    credentials = {"type": "array", "items": credential, "minItems": 1, "maxItems": MAX_STREAMED_CREDENTIALS}
    return object_of({"domain": TEXT, "credentials": credentials}, extra_fields=True)


def _credential() -> Json:
    return object_of(
        {
            "credentialId": TEXT,
            "domain": TEXT,
            "credentialType": TEXT,
            "credentialKey": TEXT,
            "hint": {"type": "string", "maxLength": 4},
            "state": {"enum": ["active", "expired"]},
            "createdAt": TIME,
            "updatedAt": TIME,
        },
        {"expiredAt": TIME, "cause": {"type": _OR_NULL}},
    )
