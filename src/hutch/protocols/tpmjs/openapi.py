"""OpenAPI description of the TPMJS protocol, built from the tables that the responses use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from hutch.http.health import PROTOCOL_VERSION
from hutch.http.openapi import (
    COUNT,
    FLAG,
    LIMIT_NAME,
    TEXT,
    ApiPart,
    Json,
    object_of,
    ref,
    request_body,
    response,
)
from hutch.protocols.tpmjs.requests import MAX_BATCH, MAX_NAME_CHARS
from hutch.protocols.tpmjs.responses import FAILURE_KINDS, VERSION_HEADER, VERSIONS
from hutch.queue.models import MAX_ATTEMPTS, MAX_DELAY_MS, MAX_KEY_CHARS, MAX_PRIORITY
from hutch.settings import Settings

# Kinds of failures, grouped by cause: the request or the server, loading a tool, running a tool.
_REQUEST = ("invalid_request", "too_large", "unsupported_media_type", "rate_limited", "busy", "internal")
_LOADING = (
    "package_not_found",
    "package_too_large",
    "import_failed",
    "tool_not_found",
    "tool_invalid",
    "configuration_required",
)
_EXECUTING = (*_LOADING, "execution_error", "timeout")
_DESCRIBING = (*_LOADING, "schema_unavailable", "execution_error", "timeout")
_IN_RESULT = (*_EXECUTING, "invalid_params", "invalid_request", "busy", "internal")
_ACCESS = ("unauthorized", "forbidden")


_DESCRIPTION = """\
Runs tools that are npm packages. Every path is also served below `/api`, and repeated slashes are ignored.
Errors have the format of protocol 1.1, with `error` as a string, if the request has the header
`{header}: 1.1`{or_without}. Otherwise they have the format of protocol 1.0, with `error` as an object.
Any other path returns 404 (`NOT_FOUND`), any other method 405 (`METHOD_NOT_ALLOWED`), in the format of 1.0.
OPTIONS always returns 200."""


def describe(settings: Settings) -> ApiPart:
    or_without = " or no such header" if settings.tpmjs_string_errors else ""
    paths = {
        "/info": {"get": _info_operation()},
        "/execute-tool": _post(
            "Executes a tool",
            "ToolExecution",
            _EXAMPLE,
            "ExecutedTool",
            _EXECUTING,
            events=True,
            settings=settings,
        ),
        "/execute-async": _async_operation(settings),
        "/execute-batch": _post(
            "Executes several tools",
            "ToolBatch",
            {"tools": [_EXAMPLE]},
            "ToolBatchResults",
            (),
            settings=settings,
        ),
        "/load-and-describe": _describe_operation("Describes a tool", settings),
        "/validate-tool": _describe_operation("Loads a tool without executing it", settings),
    }
    description = _DESCRIPTION.format(header=VERSION_HEADER, or_without=or_without)
    return ApiPart("TPMJS", description, paths, _schemas(settings))


# --- operations ---


def _info_operation() -> Json:
    return {
        "summary": "Shows the capabilities of the server",
        "security": [],
        "responses": {
            "200": response("OK", ref("ExecutorInfo")),
            "403": response("Forbidden", _plain_failure("FORBIDDEN")),
        },
    }


def _async_operation(settings: Settings) -> Json:
    summary = "Adds a call to the queue; responds when it is stored. `GET /runs/{id}` has its result"
    item = _post(summary, "AsyncToolExecution", _EXAMPLE, "AcceptedTool", (), settings=settings)
    responses = item["post"]["responses"]
    responses["202"] = {**responses.pop("200"), "description": "Accepted"}
    responses["409"] = response("Conflict", _either(*_failures(["conflict"])))
    return item


def _describe_operation(summary: str, settings: Settings) -> Json:
    example = {name: _EXAMPLE[name] for name in ("packageName", "version", "name")}
    return _post(summary, "ToolExecution", example, "DescribedTool", _DESCRIBING, settings=settings)


def _post(
    summary: str,
    body: str,
    example: Json,
    success: str,
    failures: Sequence[str],
    *,
    settings: Settings,
    events: bool = False,
) -> Json:
    refused = [kind for kind in _ACCESS if settings.api_key or kind != "unauthorized"]
    responses: Json = {"200": response("OK", _either(ref(success), *_failures(failures)))}
    if events:
        responses["200"]["content"]["text/event-stream"] = {
            "schema": {
                **TEXT,
                "description": "Events `log` ({line}), `partial` ({value}) and last `result` (a ToolResult)",
            },
        }
    for kind in (*_REQUEST, *refused):
        status = FAILURE_KINDS[kind].status
        responses[str(status)] = response(
            HTTPStatus(status).phrase, _either(*_failures([kind], timed=kind not in _ACCESS))
        )
    for status_code in ("429", "503"):
        responses[status_code]["headers"] = {"Retry-After": {"schema": COUNT}}
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
            "requestBody": request_body(body, example),
            "responses": responses,
        }
    }


_EXAMPLE: Json = {
    "packageName": "@tpmjs/tools-template-render",
    "version": "0.1.0",
    "name": "templateRenderTool",
    "params": {"template": "Hello {{name}}!", "data": {"name": "Bo"}},
}


# --- schemas ---


def _either(*schemas: Json) -> Json:
    return schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}


def _enum(values: Iterable[str]) -> Json:
    return {"enum": sorted(set(values))}


_RUN_FIELDS: Json = {
    "resolvedVersion": {"type": "string", "description": "The exact version that was used."},
    "warnings": {
        "type": "array",
        "items": TEXT,
        "description": "Parameters that do not match the tool's schema; absent if there are none.",
    },
    "logs": {"type": "array", "items": TEXT, "description": "Printed lines; absent if there are none."},
    "logsTruncated": {"const": True, "description": "Present if lines or characters were dropped."},
    "runId": {"type": "string", "description": "Id of the run in the server's log."},
}
_FAILED_FIELDS: Json = {
    **_RUN_FIELDS,
    "errorLocation": {"type": "string", "description": "File, line and column in the package."},
}


def _failures(kinds: Sequence[str], *, timed: bool = True) -> list[Json]:
    """Builds the error schemas of both protocol versions. In version 1.0, only errors of started work have a
    duration.
    """
    if not kinds:
        return []
    rows = [FAILURE_KINDS[kind] for kind in kinds]
    limited = {"limit": LIMIT_NAME} if "rate_limited" in kinds else {}
    error = object_of({"code": _enum(row.code for row in rows), "message": TEXT}, limited)
    old: Json = {"success": {"const": False}, "error": error}
    new: Json = {
        "success": {"const": False},
        "error": TEXT,
        "errorStage": _enum(row.stage for row in rows),
        "errorCode": _enum(row.code_1_1 for row in rows),
        "retryable": FLAG,
        "executionTimeMs": COUNT,
    }
    return [
        object_of({**old, "executionTimeMs": COUNT} if timed else old, _FAILED_FIELDS),
        object_of(new, {**_FAILED_FIELDS, **limited}),
    ]


def _plain_failure(code: str) -> Json:
    return object_of(
        {"success": {"const": False}, "error": object_of({"code": {"const": code}, "message": TEXT})}
    )


def _schemas(settings: Settings) -> Json:
    tool = object_of(
        {"name": TEXT, "description": TEXT, "inputSchema": {"type": "object"}},
        {"healthCheck": {"type": "object"}, "warnings": {"type": "array", "items": TEXT}},
    )
    executed = object_of(
        {"success": {"const": True}, "output": {"description": "Any JSON"}, "executionTimeMs": COUNT},
        _RUN_FIELDS,
    )
    return {
        "ExecutorInfo": _info(),
        "ToolExecution": _call(settings),
        "AsyncToolExecution": _async_call(settings),
        "AcceptedTool": object_of({"success": {"const": True}, "runId": TEXT, "statusUrl": TEXT}),
        "ToolBatch": object_of(
            {"tools": {"type": "array", "items": ref("ToolExecution"), "minItems": 1, "maxItems": MAX_BATCH}},
            extra_fields=True,
        ),
        "ExecutedTool": executed,
        "ToolResult": _either(ref("ExecutedTool"), *_failures(_IN_RESULT)),
        "ToolBatchResults": object_of(
            {
                "success": {"type": "boolean", "description": "Whether all succeeded."},
                "results": {
                    "type": "array",
                    "items": ref("ToolResult"),
                    "minItems": 1,
                    "maxItems": MAX_BATCH,
                },
                "executionTimeMs": COUNT,
            }
        ),
        "DescribedTool": object_of(
            {"success": {"const": True}, "tool": tool}, {"resolvedVersion": _RUN_FIELDS["resolvedVersion"]}
        ),
    }


def _call(settings: Settings) -> Json:
    or_null = ["object", "null"]
    return object_of(
        {
            "packageName": {"type": "string", "description": "Name of the npm package"},
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_NAME_CHARS,
                "description": "Name of the export",
            },
        },
        {
            "version": {
                "type": ["string", "null"],
                "description": "A version, range or tag",
                "default": "latest",
            },
            "params": {"type": or_null, "description": "Input of the tool"},
            "env": {
                "type": or_null,
                "additionalProperties": TEXT,
                "description": "Environment variables, for this call only",
            },
            "validate": {
                "type": ["boolean", "null"],
                "description": "Refuses parameters that do not match the tool's schema; applies its defaults",
                "default": settings.tpmjs_validate,
            },
        },
        extra_fields=True,
    )


def _async_call(settings: Settings) -> Json:
    call = _call(settings)
    webhook: Json = object_of({"url": TEXT}, {"secret": TEXT})
    options: Json = {
        "callbackUrl": {
            "oneOf": [TEXT, webhook, {"type": "null"}],
            "description": "Gets a signed message when the run has ended",
        },
        "idempotencyKey": {"type": ["string", "null"], "minLength": 1, "maxLength": MAX_KEY_CHARS},
        "priority": {"type": ["integer", "null"], "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
        "delayMs": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_DELAY_MS},
        "deadlineMs": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_DELAY_MS},
        "attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ATTEMPTS},
    }
    return {**call, "properties": {**call["properties"], **options}}


def _info() -> Json:
    capabilities = object_of(
        {
            "isolation": {"enum": ["container", "process"]},
            "executionModes": {"enum": [["sync", "stream"], ["sync", "stream", "async"]]},
            "maxExecutionTimeMs": COUNT,
            "maxRequestBodyBytes": COUNT,
            "supportsStreaming": {"const": True},
            "supportsCallbacks": FLAG,
            "supportsCaching": {"const": True},
            "supportsValidation": {"const": True},
            "supportsBatch": {"const": True},
            "maxBatchSize": {"const": MAX_BATCH},
            "maxConcurrentExecutions": COUNT,
        },
        {"maxExecutionsPerMinute": COUNT},
    )
    return object_of(
        {
            "name": TEXT,
            "version": TEXT,
            "protocolVersion": {"const": PROTOCOL_VERSION},
            "supportedProtocolVersions": {"const": [*VERSIONS]},
            "capabilities": capabilities,
            "runtime": object_of(
                {"platform": TEXT, "denoVersion": TEXT}, {"nodeVersion": TEXT, "region": TEXT}
            ),
            "metadata": {"type": "object", "additionalProperties": TEXT},
        }
    )
