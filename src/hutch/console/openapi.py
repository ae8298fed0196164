"""OpenAPI description of the console's own routes: users and keys, sessions, the overview and the system."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.console.accounts import MAX_DAYS
from hutch.console.load_history import LoadSample
from hutch.http.browser_sessions import COOKIE, CSRF_HEADER
from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    TIME,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    failure,
    object_of,
    path_param,
    ref,
)
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.settings import Settings
from hutch.store.models import Quota
from hutch.vault import api_keys

_OR_NULL = ["string", "null"]
_TIME_OR_NULL: Json = {"type": _OR_NULL, "format": "date-time"}
_COUNTS: Json = {"type": "object", "additionalProperties": COUNT}
_NAME = path_param("name", TEXT)
_ID = path_param("id", TEXT)
_SPEC = path_param("spec", {**TEXT, "description": "A name, or a name with a version: `ms@2.1.3`"})

_ACCESS = """\
Users, their API keys and their credentials. Only for the operator. A server without a key lists them and
refuses changes; use `hutch user`, `hutch key` and `hutch credential` instead."""
_CONSOLE = f"""\
Routes that only the web console needs: signing in, the overview, and the state of the system. On all routes,
a signed-in browser sends the cookie `{COOKIE}` instead of a key. Requests that change something must also
have the session's CSRF token in the header `{CSRF_HEADER}`."""


def describe() -> tuple[ApiPart, ApiPart]:
    """Returns the routes for users and keys, and those of the console's pages."""
    return (
        ApiPart("Users and keys", _ACCESS, _account_paths(), _account_schemas(), access="operator_key"),
        ApiPart("Web console", _CONSOLE, _console_paths(), _console_schemas()),
    )


_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "UNAVAILABLE")
_operation = OperationBuilder(ERROR_KINDS, _ALWAYS, failure)
_PUBLIC: Json = {"security": []}
_OPERATOR: Json = {"security": [{"operator_key": []}]}


def _without_content(summary: str, codes: tuple[str, ...] = (), **options: Any) -> Json:
    operation = _operation(summary, {}, codes, status=204, **options)
    del operation["responses"]["204"]["content"]
    return operation


def _struct_schemas(*structs: type[msgspec.Struct]) -> Json:
    """Returns the schemas of structs that are sent unchanged, and of the structs that they contain."""
    template = "#/components/schemas/{name}"
    _, schemas = msgspec.json.schema_components(structs, ref_template=template)
    return schemas


# --- users and keys ---


def _account_paths() -> Json:
    return {
        "/console/users": {
            "get": _operation("Lists users", ref("UserList")),
            "post": _operation(
                "Adds a user", ref("User"), ("CONFLICT",), body="NewUser", example={"name": "bo"}, status=201
            ),
        },
        "/console/users/{name}": {
            "get": _operation(
                "Shows a user with keys and credentials", ref("WholeUser"), ("NOT_FOUND",), parameters=[_NAME]
            ),
            "delete": _without_content("Removes a user", ("NOT_FOUND",), parameters=[_NAME]),
        },
        "/console/users/{name}/keys": {
            "post": _operation(
                "Creates a key; the response has the only copy of its secret",
                ref("NewKeyWithSecret"),
                ("NOT_FOUND",),
                body="NewKey",
                example={"name": "laptop", "scopes": ["execbox", "mcp"], "days": 30},
                parameters=[_NAME],
                status=201,
            )
        },
        "/console/users/{name}/quota": {
            "put": _set_quota("Replaces the quota of a user; missing limits come from the settings", _NAME)
        },
        "/console/keys/{id}/quota": {
            "put": _set_quota("Replaces the quota of a key; missing limits come from its user", _ID)
        },
        "/console/keys/{id}": {
            "delete": _without_content("Revokes a key", ("NOT_FOUND",), parameters=[_ID]),
        },
        "/console/users/{name}/credentials": {
            "post": _operation(
                "Stores or replaces a credential; its value cannot be read again",
                ref("UserCredential"),
                ("NOT_FOUND",),
                body="NewUserCredential",
                example={"domain": "api.example.com", "key": "Authorization", "value": "Bearer …"},
                parameters=[_NAME],
                status=201,
            )
        },
        "/console/users/{name}/credentials/{id}": {
            "delete": _without_content("Removes a credential", ("NOT_FOUND",), parameters=[_NAME, _ID]),
        },
    }


def _set_quota(summary: str, subject: Json) -> Json:
    example = {"max_executions_per_minute": 60, "max_cpu_seconds_per_day": 3_600}
    return _operation(
        summary, ref("Quota"), ("NOT_FOUND",), body="Quota", example=example, parameters=[subject]
    )


def _account_schemas() -> Json:
    scopes: Json = {"type": "array", "items": {"enum": [*api_keys.SCOPES]}}
    user: Json = {"id": TEXT, "name": TEXT, "createdAt": TIME}
    key: Json = {
        "id": TEXT,
        "name": TEXT,
        "state": {"enum": ["active", "expired", "revoked"]},
        "endsWith": TEXT,
        "scopes": scopes,
        "createdAt": TIME,
        "expiresAt": _TIME_OR_NULL,
        "lastUsedAt": _TIME_OR_NULL,
    }
    use = {
        "quota": ref("Quota"),
        "today": object_of({"executions": COUNT, "cpuSeconds": {"type": "number"}}),
    }
    listed = object_of({**user, "keys": {**COUNT, "description": "Number of active keys"}})
    kinds: Json = {"enum": ["header", "cookie", "auth_token", "query", "body"]}
    return {
        "User": object_of(user),
        "UserList": object_of(
            {"users": {"type": "array", "items": listed}, "scopes": TEXTS, "defaultScopes": TEXTS}
        ),
        "WholeUser": object_of(
            {
                **user,
                **use,
                "defaults": {**ref("Quota"), "description": "Limits of the settings"},
                "keys": array_of("Key"),
                "credentials": array_of("UserCredential"),
            }
        ),
        "NewUser": object_of({"name": TEXT}, extra_fields=True),
        "Key": object_of({**key, **use}),
        **_struct_schemas(Quota),
        "NewKey": object_of(
            {},
            {
                "name": TEXT,
                "scopes": {**scopes, "description": "Protocols that the key may use; empty for the default"},
                "days": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_DAYS},
            },
            extra_fields=True,
        ),
        "NewKeyWithSecret": object_of({**key, "secret": {**TEXT, "description": "The key, `hk_…`"}}),
        "UserCredential": object_of(
            {
                "id": TEXT,
                "domain": TEXT,
                "kind": kinds,
                "key": TEXT,
                "hint": {**TEXT, "description": "Last characters of a long value"},
                "state": {"enum": ["active", "expired"]},
                "updatedAt": TIME,
            }
        ),
        "NewUserCredential": object_of(
            {"domain": TEXT, "key": TEXT, "value": {**TEXT, "description": "Never returned"}},
            {"kind": {**kinds, "default": "header"}},
            extra_fields=True,
        ),
    }


# --- the console ---


def _console_paths() -> Json:
    events = _operation("Streams a `sample` of the load every second", TEXT)
    events["responses"]["200"]["content"] = {"text/event-stream": {"schema": TEXT}}
    return {
        "/console/session": {
            "get": _PUBLIC | _operation("Shows who is signed in", ref("Session")),
            "post": _PUBLIC
            | _without_content(
                "Signs a browser in, with a link or a key", body="SignIn", example={"key": "hk_…"}
            ),
            "delete": _PUBLIC | _without_content("Signs the browser out"),
        },
        "/console/links": {
            "post": _operation(
                "Creates a one-time link that signs a browser in with the caller's key",
                object_of({"path": TEXT}),
            )
        },
        "/console/overview": {
            "get": _OPERATOR | _operation("Shows the load of the last ten minutes", ref("Overview"))
        },
        "/console/overview/events": {"get": _OPERATOR | events},
        "/console/check": {
            "post": _operation(
                "Checks the types of code against the tools of the MCP servers",
                object_of({"problems": array_of("CodeProblem")}),
                body="CodeToCheck",
                example={"code": "return await tools.files.readFile({pth: 'a'})"},
            )
        },
        "/console/system": {
            "get": _OPERATOR
            | _operation("Shows isolation, self-test, versions and settings in force", ref("System"))
        },
        "/console/doctor": {
            "post": _OPERATOR
            | _operation(
                "Checks the machine as `hutch doctor` does, which takes some seconds",
                object_of(
                    {
                        "healthy": FLAG,
                        "isolation": {"type": ["string", "null"]},
                        "findings": {
                            "type": "array",
                            "items": object_of(dict.fromkeys(("name", "state", "found", "todo"), TEXT)),
                        },
                    }
                ),
                ("BUSY",),
            )
        },
        "/console/packages": {
            "get": _OPERATOR
            | _operation(
                "Lists installed npm packages", object_of({"packages": array_of("InstalledPackage")})
            ),
            "post": _OPERATOR
            | _operation(
                "Installs an npm package",
                object_of({"name": TEXT, "version": TEXT}),
                ("NOT_FOUND",),
                body="PackageToInstall",
                example={"package": "ms@2.1.3"},
                status=201,
            ),
        },
        "/console/packages/{spec}": {
            "get": _OPERATOR
            | _operation(
                "Shows the tools and spares of an installed package",
                ref("PackageTools"),
                ("NOT_FOUND", "INVALID_REQUEST"),
                parameters=[_SPEC],
            ),
            "delete": _OPERATOR
            | _without_content("Removes a package", ("NOT_FOUND", "INVALID_REQUEST"), parameters=[_SPEC]),
        },
        "/console/abilities": {
            "get": _OPERATOR
            | _operation(
                "Lists the abilities of all users",
                object_of({"abilities": array_of("ListedAbility"), "isComplete": FLAG}),
            )
        },
    }


def _console_schemas() -> Json:
    setting = object_of(
        {
            "name": {"enum": [*Settings.__struct_fields__]},
            "value": {"description": "`***` instead of a secret"},
            "default": {},
            "source": {**TEXT, "description": "Where it was set, or `default`"},
        }
    )
    return {
        **_struct_schemas(LoadSample, SelfTestResult),
        "Session": object_of(
            {"signedIn": FLAG, "version": TEXT},
            {
                "role": {"enum": ["admin", "user"]},
                "user": {"type": _OR_NULL},
                "csrf": {"type": _OR_NULL},
                "needsKey": FLAG,
                "reason": TEXT,
            },
        ),
        "SignIn": {
            "type": "object",
            "properties": {"link": TEXT, "key": TEXT},
            "anyOf": [{"required": ["link"]}, {"required": ["key"]}],
        },
        "Overview": object_of({"samples": array_of("LoadSample"), "outcomes": _COUNTS, "protocols": _COUNTS}),
        "InstalledPackage": object_of(
            {
                "name": TEXT,
                "version": TEXT,
                "bytes": COUNT,
                "files": COUNT,
                "installedAt": TIME,
                "usedAt": TIME,
                "knownAs": {**TEXTS, "description": "Ranges and tags that resolve to this version"},
            }
        ),
        "PackageToInstall": object_of({"package": TEXT}, extra_fields=True),
        "PackageTools": object_of(
            {
                "name": TEXT,
                "version": TEXT,
                "tools": {"type": "array", "items": object_of({"name": TEXT, "description": TEXT})},
                "spares": COUNT,
            }
        ),
        "ListedAbility": object_of(
            {
                "id": TEXT,
                "name": TEXT,
                "service": TEXT,
                "description": TEXT,
                "owner": {"type": _OR_NULL},
                "version": COUNT,
                "shared": FLAG,
                "updatedAt": TIME,
            }
        ),
        "CodeToCheck": object_of({"code": TEXT}, extra_fields=True),
        "CodeProblem": object_of(
            {"file": TEXT, "message": TEXT, "line": COUNT, "column": COUNT, "length": COUNT, "code": COUNT},
            {"source_line": TEXT, "signature": {"type": _OR_NULL}},
        ),
        "System": object_of(
            {
                "version": TEXT,
                "isolation": TEXT,
                "selfTest": ref("SelfTestResult"),
                "deno": TEXT,
                "settings": {"type": "array", "items": setting},
            }
        ),
    }
