"""OpenAPI description of `POST /run`, of `/sessions` and of the WebSocket `/execbox`."""

from __future__ import annotations

from hutch.errors import wire_code
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
    header,
    object_of,
    path_param,
    ref,
    response,
)
from hutch.kernel.sessions.sessions import SESSION_ID_PATTERN
from hutch.settings import Settings

_ALWAYS = (
    "UNAUTHORIZED",
    "FORBIDDEN",
    "METHOD_NOT_ALLOWED",
    "RATE_LIMITED",
    "INTERNAL_ERROR",
    "BUSY",
    "UNAVAILABLE",
)
_DESCRIPTION = """\
Runs JavaScript or TypeScript in the sandbox. If the code fails, that is a result with `ok: false` and the
status 200. With `Accept: text/event-stream`, the response is a stream of the run's events; its last event is
`result`, with the same body, or `error`."""
_ERROR_CODES = (
    "timeout",
    "memory_limit",
    "validation_error",
    "tool_error",
    "runtime_error",
    "serialization_error",
    "internal_error",
)


def describe(settings: Settings) -> ApiPart:
    number = {"type": "number", "exclusiveMinimum": 0}
    limits = {
        "timeout_ms": {**number, "maximum": settings.max_timeout_ms, "default": settings.timeout_ms},
        "memory_limit_bytes": {
            **number,
            "maximum": settings.max_memory_limit_bytes,
            "default": settings.memory_limit_bytes,
        },
        "max_log_lines": {**COUNT, "maximum": settings.max_log_lines_ceiling},
        "max_log_chars": {**COUNT, "maximum": settings.max_log_chars_ceiling},
    }
    error = object_of(
        {"code": {"enum": sorted(map(wire_code, _ERROR_CODES))}, "message": TEXT},
        {"name": TEXT, "line": COUNT, "column": COUNT, "stack": TEXT},
        extra_fields=True,
    )
    call = object_of({"provider": TEXT, "tool": TEXT, "ok": FLAG, "duration_ms": {"type": "number"}})
    file = object_of({"name": TEXT, "mime_type": TEXT, "size": COUNT, "data": TEXT})
    schemas = {
        "RunRequest": object_of(
            {"code": TEXT},
            {
                "inputs": {"type": "object", "description": "Variables of the code"},
                "files": {
                    "type": "object",
                    "additionalProperties": TEXT,
                    "description": "Contents in Base64, by name. The code reads them with `files.read(name)`",
                },
                "engine": {"enum": ["quickjs", "deno"], "default": "quickjs"},
                "limits": object_of({}, limits),
                "check": {**FLAG, "description": "Whether to check the types first", "default": False},
                "label": {**TEXT, "maxLength": 200},
                "record": {
                    "enum": ["metadata", "errors", "full"],
                    "description": "Level of the run's record; the operator's `metadata` takes precedence",
                },
            },
        ),
        "RunResult": object_of(
            {
                "ok": FLAG,
                "run_id": TEXT,
                "logs": TEXTS,
                "logs_truncated": FLAG,
                "duration_ms": {"type": "number"},
                "calls": {"type": "array", "items": call},
            },
            {"result": {}, "error": error, "warnings": TEXTS, "files": {"type": "array", "items": file}},
        ),
    }
    operation = OperationBuilder(ERROR_KINDS, _ALWAYS, failure)
    run = operation(
        "Runs code",
        ref("RunResult"),
        body="RunRequest",
        example={"code": "return n * 2", "inputs": {"n": 21}},
        parameters=[
            header("Accept", {"enum": ["application/json", "text/event-stream"]}, "Whether to stream events")
        ],
    )
    turn = operation(
        "Runs code as the next turn of a session; a turn that fails changes nothing",
        ref("RunResult"),
        ("NOT_FOUND", "CONFLICT"),
        body="RunRequest",
        example={"code": "let total = 42"},
        parameters=[*_SESSION, *run["parameters"]],
    )
    for success in (run["responses"]["200"], turn["responses"]["200"]):
        success["headers"] = {"X-Run-Id": {"schema": TEXT}}
        success["content"]["text/event-stream"] = {"schema": TEXT}
    paths = {
        "/run": {"post": run},
        "/execbox": {"get": _websocket()},
        **_session_paths(operation),
        "/sessions/{session}/run": {"post": turn},
    }
    return ApiPart("Execbox", _DESCRIPTION, paths, {**schemas, **_session_schemas()})


_SESSION = (path_param("session", {**TEXT, "pattern": SESSION_ID_PATTERN}),)


def _session_paths(operation: OperationBuilder) -> Json:
    session, errors = ref("StatefulSession"), ("NOT_FOUND", "CONFLICT")
    create = operation(
        "Creates a session, whose turns share their variables",
        session,
        ("CONFLICT",),
        body="NewSession",
        example={"id": "analysis"},
        status=201,
    )
    fork = operation(
        "Copies a session",
        session,
        errors,
        body="NewSession",
        example={"id": "copy"},
        parameters=_SESSION,
        status=201,
    )
    create["requestBody"]["required"] = fork["requestBody"]["required"] = False
    delete = operation("Deletes a session", {}, errors, parameters=_SESSION, status=204)
    del delete["responses"]["204"]["content"]
    return {
        "/sessions": {
            "get": operation(
                "Lists the caller's sessions", object_of({"sessions": array_of("StatefulSession")})
            ),
            "post": create,
        },
        "/sessions/{session}": {
            "get": operation("Shows a session", session, errors, parameters=_SESSION),
            "delete": delete,
        },
        "/sessions/{session}/fork": {"post": fork},
        "/sessions/{session}/rollback": {
            "post": operation(
                "Restores the state after a turn, and discards the later ones",
                session,
                errors,
                body="Rollback",
                example={"turn": 1},
                parameters=_SESSION,
            )
        },
        "/sessions/{session}/variables": {
            "get": operation(
                "Lists the variables of a session",
                object_of({"variables": array_of("Variable")}),
                errors,
                parameters=_SESSION,
            )
        },
    }


def _session_schemas() -> Json:
    return {
        "NewSession": object_of({}, {"id": {**TEXT, "pattern": SESSION_ID_PATTERN}}),
        "Rollback": object_of({"turn": COUNT}),
        "StatefulSession": object_of(
            {
                "id": TEXT,
                "turn": {**COUNT, "description": "Number of the last turn"},
                "created_at": TIME,
                "used_at": TIME,
                "expires_at": TIME,
                "bytes": {**COUNT, "description": "Size in the store"},
            }
        ),
        "Variable": object_of(
            {"name": TEXT, "type": TEXT, "bytes": {**COUNT, "description": "Approximate size in memory"}}
        ),
    }


def _websocket() -> Json:
    operation = OperationBuilder(ERROR_KINDS, ("UNAUTHORIZED", "FORBIDDEN", "UNAVAILABLE"), failure)
    socket = operation("Opens a WebSocket on which the client is an Execbox host", TEXT)
    del socket["responses"]["200"]
    socket["responses"]["101"] = {"description": "The messages are Execbox's: one JSON object in each"}
    socket["responses"]["426"] = response("The request is not an upgrade", failure(["UPGRADE_REQUIRED"]))
    return socket
