"""`/flows/openapi.json`: what is served here, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from hutch._version import __version__
from hutch.doors.operations import Json, operation, query, response
from hutch.doors.rep.replies import STATUS
from hutch.doors.rep.requests import MOST_ID, MOST_LISTED
from hutch.settings import Settings

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_VERSION: Json = {"type": "integer", "minimum": 1}
_TIME: Json = {"type": "string", "format": "date-time"}
_OBJECT: Json = {"type": "object"}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
_STATUS: Json = {"enum": ["pending", "running", "completed", "failed"]}
_STATE: Json = {"enum": ["pending", "running", "waiting", "interrupted", "completed", "failed", "cancelled"]}
_OUTCOME: Json = {
    "enum": ["ok", "cancelled", "timeout", "step_failed", "invalid_flow", "runtime_failed", None]
}

# By what every request, and every request with a body, can be refused for.
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "BUSY")
_WITH_BODY = ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")

_DESCRIPTION = """\
Flows of steps, kept by name and run on a runtime in a process of their own. A run goes on after a crash
where it was: steps that are over are not done again. Every path is also served below `/api`. A user's key
needs the scope `rep`, and those of the doors that its flows' steps go through."""


def document(settings: Settings) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{settings.executor_name}: flows",
            "version": __version__,
            "description": _DESCRIPTION,
        },
        "servers": [{"url": "/"}, {"url": "/api"}],
        "security": [{"key": []}],
        "paths": {
            "/flows": {"get": _flows(), "post": _register()},
            "/flows/{name}": {"get": _flow(), "delete": _remove()},
            "/flows/{name}/runs": {"post": _begin()},
            "/runs": {"get": _runs()},
            "/runs/{id}": {"get": _run()},
            "/runs/{id}/events": {"get": _events()},
            "/runs/{id}/cancel": {"post": _done("Ends a run, wherever it runs. One that is over stays so")},
            "/runs/{id}/resume": {"post": _resume()},
            "/runs/{id}/approvals": {"get": _approvals()},
            "/runs/{id}/approvals/{step_id}": {"post": _approve()},
            "/flows/openapi.json": {
                "get": {
                    "summary": "This document",
                    "security": [],
                    "responses": {"200": response("OK", _OBJECT)},
                }
            },
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "hk_…"}},
            "schemas": _schemas(),
        },
    }


# --- operations ---


def _flows() -> Json:
    return _operation(
        "Lists one's flows, by name",
        _object({"flows": _array("Flow")}, {"next": _NEXT}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", _up_to(MOST_LISTED)), query("after", _TEXT)],
    )


def _register() -> Json:
    operation = _operation(
        "Keeps a flow, or a new version of it; 200 if it is kept already",
        _ref("Flow"),
        ("RATE_LIMITED",),
        takes="FlowIR",
        status=201,
    )
    operation["responses"]["200"] = operation["responses"]["201"]
    return operation


def _flow() -> Json:
    return _operation(
        "Shows a flow",
        _ref("WholeFlow"),
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_NAME, query("version", _VERSION)],
    )


def _remove() -> Json:
    return _operation(
        "Removes a flow with all its versions; its runs stay",
        _object({"name": _TEXT}),
        ("NOT_FOUND",),
        parameters=[_NAME],
    )


def _begin() -> Json:
    operation = _operation(
        "Begins a run; 200 if there is that run already",
        _ref("FlowRun"),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        takes="NewRun",
        parameters=[_NAME],
        status=202,
    )
    operation["requestBody"]["required"] = False
    operation["responses"]["200"] = operation["responses"]["202"]
    return operation


def _runs() -> Json:
    return _operation(
        "Lists one's runs of flows, the newest first",
        _object({"runs": _array("FlowRun")}, {"next": _NEXT}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", _up_to(MOST_LISTED)), query("before", _TEXT)],
    )


def _run() -> Json:
    return _operation(
        "Shows a run, of whatever door",
        {"oneOf": [_ref("WholeFlowRun"), _ref("OtherRun")]},
        ("NOT_FOUND",),
        parameters=[_ID],
    )


def _events() -> Json:
    last = {"name": "Last-Event-ID", "in": "header", "schema": _COUNT, "description": "Where to go on"}
    operation = _operation(
        "Tells what a run does, as it does it: an event each, and `end` or `interrupted` at the end",
        _TEXT,
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_ID, last, query("after", _COUNT)],
    )
    operation["responses"]["200"]["content"] = {"text/event-stream": {"schema": _TEXT}}
    return operation


def _done(summary: str, failures: Sequence[str] = (), status: int = 200) -> Json:
    gives = _object({"ok": {"const": True}, "run_id": _TEXT})
    return _operation(summary, gives, ("NOT_FOUND", *failures), parameters=[_ID], status=status)


def _resume() -> Json:
    summary = "Goes on with a run that failed or was cancelled; steps that are over are not done again"
    return _done(summary, ("CONFLICT", "RATE_LIMITED"), 202)


def _approvals() -> Json:
    return _operation(
        "Lists the steps that wait for an approval",
        _object({"run_id": _TEXT, "approvals": _array("Approval"), "approvals_total": _COUNT}),
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_ID, query("limit", _up_to(MOST_LISTED)), query("offset", _COUNT)],
    )


def _approve() -> Json:
    step = {"name": "step_id", "in": "path", "required": True, "schema": _TEXT}
    return _operation(
        "Approves, or refuses",
        _object({"ok": {"const": True}, "run_id": _TEXT, "step_id": _TEXT, "approved": {"type": "boolean"}}),
        ("NOT_FOUND", "CONFLICT"),
        takes="Word",
        parameters=[_ID, step],
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
_NAME: Json = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
_NEXT: Json = {"type": "string", "description": "There if there may be more: where the next list begins"}

# --- schemas ---


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _up_to(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}


def _object(required: Json, optional: Json | None = None) -> Json:
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def _failure(codes: Sequence[str]) -> Json:
    problem = _object({"path": _TEXT, "message": _TEXT})
    error = _object(
        {"code": {"enum": sorted(codes)}, "message": _TEXT}, {"problems": {"type": "array", "items": problem}}
    )
    return _object({"success": {"const": False}, "error": error})


def _schemas() -> Json:
    flow: Json = {"name": _TEXT, "version": _VERSION, "created_at": _TIME, "updated_at": _TIME}
    run: Json = {
        "run_id": _TEXT,
        "door": {"const": "rep"},
        "flow": _TEXT,
        "version": {"type": ["integer", "null"]},
        "status": _STATUS,
        "state": _STATE,
        "outcome": _OUTCOME,
        "created_at": _TIME,
        "started_at": _TIME_OR_NULL,
        "ended_at": _TIME_OR_NULL,
    }
    return {
        "FlowIR": {"type": "object", "description": "Flow IR 1.0.0; it has its name in it"},
        "Flow": _object(flow),
        "WholeFlow": _object({**flow, "document": _ref("FlowIR")}),
        "NewRun": _new_run(),
        "FlowRun": _object(run),
        "WholeFlowRun": _object(
            {
                **run,
                "inputs": _OBJECT,
                "summary": _ref("Summary"),
                "approvals": {**_array("Approval"), "description": "The first ones"},
                "approvals_total": _COUNT,
            }
        ),
        "Summary": _summary(),
        "OtherRun": _object(
            {
                "run_id": _TEXT,
                "door": _TEXT,
                "engine": _TEXT,
                "label": {"type": ["string", "null"]},
                "status": {"enum": ["completed", "failed"]},
                "outcome": {"type": "string", "description": "`ok`, or the error's code"},
                "started_at": _TIME,
                "duration_ms": {"type": "number", "minimum": 0},
                "details": _OBJECT,
            }
        ),
        "Approval": _object({"step_id": _TEXT, "message": _TEXT, "asked_at": _TIME}),
        "Word": _word(),
    }


def _new_run() -> Json:
    return _object(
        {},
        {
            "inputs": {"type": ["object", "null"], "description": "As the flow's inputs_schema says"},
            "run_id": {
                "type": ["string", "null"],
                "maxLength": MOST_ID,
                "description": "The same again is the same run",
            },
            "version": {"type": ["integer", "null"], "minimum": 1},
            "concurrency": {"type": ["integer", "null"], "minimum": 1},
            "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds"},
        },
    )


def _summary() -> Json:
    return _object(
        {"completed_steps": _COUNT, "failed_steps": _COUNT, "total_steps": _COUNT},
        {
            "skipped_steps": _COUNT,
            "outputs": {"description": "What the flow gave, once it is complete"},
            "error": _object({"code": {"type": "integer"}, "message": _TEXT, "data": _OBJECT}),
            "cancelled": {"const": True},
        },
    )


def _word() -> Json:
    said = {"type": ["string", "null"], "maxLength": MOST_ID}
    by = {**said, "description": "Who says so; a user's own name is taken in any case"}
    return _object({"approved": {"type": "boolean"}}, {"by": by, "reason": said})
