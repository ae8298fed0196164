"""`/openapi.json`: what is served, word for word. Built from the tables that the answers come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from hutch._version import __version__
from hutch.doors.health import PROTOCOL_VERSION
from hutch.doors.tpmjs.answers import KINDS, VERSION_HEADER, VERSIONS
from hutch.doors.tpmjs.requests import MAX_BATCH, MAX_NAME
from hutch.settings import Settings

Json = dict[str, Any]

# By what can go wrong: with the request, with the executor, while a tool is loaded, and while it runs.
_REQUEST = ("invalid_request", "too_large", "media_type", "rate_limited", "busy", "internal")
_LOADING = ("package_not_found", "import_failed", "tool_not_found", "tool_invalid", "configuration_required")
_EXECUTING = (*_LOADING, "execution_error", "timeout")
_DESCRIBING = (*_LOADING, "schema_unavailable", "execution_error", "timeout")
_IN_RESULT = (*_EXECUTING, "invalid_request", "busy", "internal")
_AT_THE_GATE = ("unauthorized", "forbidden")

_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}

_DESCRIPTION = f"""\
Runs tools that are npm packages. Every path is also served below `/api`, and slashes too many do no harm.
Answers are in the shape of protocol 1.0 unless the request says `{VERSION_HEADER}: 1.1`.
Any other path is answered with 404 (`NOT_FOUND`), any other method with 405 (`METHOD_NOT_ALLOWED`), both as
in `components/responses`; OPTIONS with 200, everywhere."""


def document(settings: Settings) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {"title": settings.executor_name, "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}, {"url": "/api"}],
        "security": [{"key": []}] if settings.api_key else [],
        "paths": {
            "/health": _get("Whether it lives", "Health", {503: "Health"}),
            "/info": _get("What it can", "Info"),
            "/openapi.json": _get("This document", "Document"),
            "/execute-tool": _post(
                "Executes a tool", "Call", "Executed", _EXECUTING, events=True, settings=settings
            ),
            "/execute-batch": _post("Executes several tools", "Batch", "BatchResults", (), settings=settings),
            "/load-and-describe": _describing("Says what a tool is", settings),
            "/validate-tool": _describing("Loads a tool without executing it", settings),
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
            "responses": {
                "NotFound": _response("There is no such path", _plain_failure("NOT_FOUND")),
                "MethodNotAllowed": _response(
                    "The path does not take this method; `Allow` has those that it takes",
                    _plain_failure("METHOD_NOT_ALLOWED"),
                ),
            },
        },
    }


# --- operations ---


def _get(summary: str, schema: str, others: dict[int, str] | None = None) -> Json:
    responses = {
        "200": _response("OK", _ref(schema)),
        "403": _response("Forbidden", _plain_failure("FORBIDDEN")),
        "500": _response("Internal Server Error", _plain_failure("INTERNAL_ERROR")),
        **{
            str(status): _response(HTTPStatus(status).phrase, _ref(name))
            for status, name in (others or {}).items()
        },
    }
    return {"get": {"summary": summary, "security": [], "responses": responses}, "options": _OPTIONS}


def _describing(summary: str, settings: Settings) -> Json:
    return _post(summary, "Call", "Described", _DESCRIBING, settings=settings)


def _post(
    summary: str,
    takes: str,
    gives: str,
    failures: Sequence[str],
    *,
    settings: Settings,
    events: bool = False,
) -> Json:
    refused = [kind for kind in _AT_THE_GATE if settings.api_key or kind != "unauthorized"]
    responses: Json = {"200": _response("OK", _either(_ref(gives), *_failures(failures)))}
    if events:
        responses["200"]["content"]["text/event-stream"] = {
            "schema": _TEXT,
            "description": "Events `log` ({line}), `partial` ({value}) and, last, `result` (a Result).",
        }
    for kind in (*_REQUEST, *refused):
        status = KINDS[kind].status
        responses[str(status)] = _response(
            HTTPStatus(status).phrase, _either(*_failures([kind], timed=kind not in _AT_THE_GATE))
        )
    for retried in ("429", "503"):
        responses[retried]["headers"] = {"Retry-After": {"schema": _COUNT}}
    return {
        "post": {
            "summary": summary,
            "parameters": [
                {
                    "name": VERSION_HEADER,
                    "in": "header",
                    "schema": {"type": "string", "examples": [*VERSIONS]},
                }
            ],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(takes)}}},
            "responses": responses,
        },
        "options": _OPTIONS,
    }


_OPTIONS: Json = {
    "summary": "What pages of other sites may send",
    "security": [],
    "responses": {"200": {"description": "OK"}},
}


def _response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# --- schemas ---


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _either(*schemas: Json) -> Json:
    return schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}


def _object(required: Json, optional: Json | None = None, *, more: bool = False) -> Json:
    schema: Json = {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required]}
    return schema if more else {**schema, "additionalProperties": False}


def _enum(values: Iterable[str]) -> Json:
    return {"enum": sorted(set(values))}


_OF_A_RUN: Json = {
    "resolvedVersion": {"type": "string", "description": "The exact version that was used."},
    "logs": {"type": "array", "items": _TEXT, "description": "What it printed; absent when it did not."},
    "logsTruncated": {"const": True, "description": "There when lines or characters were left out."},
    "runId": {"type": "string", "description": "Under which the executor's log has it."},
}


def _failures(kinds: Sequence[str], *, timed: bool = True) -> list[Json]:
    """These failures in both versions; 1.0 has a time only where something was begun."""
    if not kinds:
        return []
    rows = [KINDS[kind] for kind in kinds]
    error = _object({"code": _enum(row.code for row in rows), "message": _TEXT})
    old: Json = {"success": {"const": False}, "error": error}
    new: Json = {
        "success": {"const": False},
        "error": _TEXT,
        "errorStage": _enum(row.stage for row in rows),
        "errorCode": _enum(row.code_1_1 for row in rows),
        "retryable": _FLAG,
        "executionTimeMs": _COUNT,
    }
    return [_object({**old, "executionTimeMs": _COUNT} if timed else old, _OF_A_RUN), _object(new, _OF_A_RUN)]


def _plain_failure(code: str) -> Json:
    return _object(
        {"success": {"const": False}, "error": _object({"code": {"const": code}, "message": _TEXT})}
    )


def _schemas() -> Json:
    tool = _object({"name": _TEXT, "description": _TEXT, "inputSchema": {"type": "object"}})
    executed = _object(
        {"success": {"const": True}, "output": {"description": "Any JSON"}, "executionTimeMs": _COUNT},
        _OF_A_RUN,
    )
    return {
        "Health": _health(),
        "Info": _info(),
        "Document": {
            "type": "object",
            "properties": {"openapi": {"const": "3.1.0"}},
            "required": ["openapi"],
        },
        "Call": _call(),
        "Batch": _object(
            {"tools": {"type": "array", "items": _ref("Call"), "minItems": 1, "maxItems": MAX_BATCH}},
            more=True,
        ),
        "Executed": executed,
        "Result": _either(_ref("Executed"), *_failures(_IN_RESULT)),
        "BatchResults": _object(
            {
                "success": {"type": "boolean", "description": "Whether all succeeded."},
                "results": {"type": "array", "items": _ref("Result"), "minItems": 1, "maxItems": MAX_BATCH},
                "executionTimeMs": _COUNT,
            }
        ),
        "Described": _object(
            {"success": {"const": True}, "tool": tool}, {"resolvedVersion": _OF_A_RUN["resolvedVersion"]}
        ),
    }


def _call() -> Json:
    or_null = ["object", "null"]
    return _object(
        {
            "packageName": {"type": "string", "description": "Of npm"},
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "description": "Of the export"},
        },
        {
            "version": {
                "type": ["string", "null"],
                "description": "A version, range or tag",
                "default": "latest",
            },
            "params": {"type": or_null, "description": "What the tool is called with"},
            "env": {"type": or_null, "additionalProperties": _TEXT, "description": "For this one call"},
        },
        more=True,
    )


def _health() -> Json:
    return _object(
        {
            "status": {"enum": ["ok", "draining"]},
            "protocolVersion": {"const": PROTOCOL_VERSION},
            "implementationVersion": _TEXT,
            "runtime": {"const": "deno"},
            "isolation": {"enum": ["container", "process"]},
            "uptimeSeconds": {"type": "number", "minimum": 0},
            "timestamp": {"type": "string", "format": "date-time"},
            "search": _object({"ready": _FLAG, "semantic": _FLAG}),
        }
    )


def _info() -> Json:
    capabilities = _object(
        {
            "isolation": {"enum": ["container", "process"]},
            "executionModes": {"const": ["sync", "stream"]},
            "maxExecutionTimeMs": _COUNT,
            "maxRequestBodyBytes": _COUNT,
            "supportsStreaming": {"const": True},
            "supportsCallbacks": {"const": False},
            "supportsCaching": {"const": True},
            "supportsValidation": {"const": True},
            "supportsBatch": {"const": True},
            "maxBatchSize": {"const": MAX_BATCH},
            "maxConcurrentExecutions": _COUNT,
        },
        {"maxExecutionsPerMinute": _COUNT},
    )
    return _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "protocolVersion": {"const": PROTOCOL_VERSION},
            "supportedProtocolVersions": {"const": [*VERSIONS]},
            "capabilities": capabilities,
            "runtime": _object(
                {"platform": _TEXT, "denoVersion": _TEXT}, {"nodeVersion": _TEXT, "region": _TEXT}
            ),
            "metadata": {"type": "object", "additionalProperties": _TEXT},
        }
    )
