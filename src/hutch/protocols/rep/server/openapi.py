"""OpenAPI description of the flows API."""

from __future__ import annotations

from collections.abc import Sequence

from hutch.http.openapi import (
    COUNT,
    LIMIT_NAME,
    NEXT_PAGE,
    TEXT,
    TIME,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    object_of,
    path_param,
    query,
    ref,
    up_to,
)
from hutch.protocols.rep.orchestrator.options import MAX_ID_CHARS
from hutch.protocols.rep.server.requests import MAX_PAGE_SIZE
from hutch.protocols.rep.server.responses import FLOW_ERRORS

_VERSION: Json = {"type": "integer", "minimum": 1}
_OBJECT: Json = {"type": "object"}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
_FORMER_STATUS: Json = {
    "enum": ["pending", "running", "completed", "failed"],
    "deprecated": True,
    "description": "Former name of `state`. Version 0.3 removes it",
}
_STATE: Json = {"enum": ["pending", "running", "waiting", "interrupted", "completed", "failed", "cancelled"]}
_OUTCOME: Json = {
    "enum": ["ok", "cancelled", "timeout", "step_failed", "invalid_flow", "runtime_failed", None]
}

# Error codes that every request may return.
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "BUSY")

_DESCRIPTION = """\
Stores flows by name and runs each run in its own runtime process. A run is resumed after a crash; finished
steps are not repeated. Every path is also served below `/api`. A user's key needs the scope `rep`, and the
scopes of the protocols that the steps of its flows use."""


_EXAMPLE: Json = {
    "name": "greet",
    "inputs": {"name": "string"},
    "steps": [
        {
            "id": "shout",
            "run": "code.run",
            "with": {"code": "return input.toUpperCase()", "input": "$input.name"},
        }
    ],
    "outputs": {"greeting": "Hello, ${step.shout}!"},
}


def describe() -> ApiPart:
    paths = {
        "/flows": {"get": _flows(), "post": _register()},
        "/flows/{name}": {"get": _flow(), "delete": _remove()},
        "/flows/{name}/runs": {"post": _start_run()},
        "/runs/{id}/steps": {"get": _steps()},
        "/runs/{id}/retry": {"post": _retry()},
        "/runs/{id}/approvals": {"get": _approvals()},
        "/runs/{id}/approvals/{step_id}": {"post": _approve()},
    }
    return ApiPart("Flows (REP)", _DESCRIPTION, paths, _schemas())


# --- operations ---


def _flows() -> Json:
    return _operation(
        "Lists the caller's flows by name",
        object_of({"flows": array_of("Flow")}, {"next": NEXT_PAGE}),
        ("INVALID_REQUEST",),
        parameters=[query("limit", up_to(MAX_PAGE_SIZE)), query("after", TEXT)],
    )


def _register() -> Json:
    operation = _operation(
        "Stores a flow or a new version of it; 200 if it is unchanged",
        ref("Flow"),
        ("RATE_LIMITED",),
        body="FlowSource",
        example=_EXAMPLE,
        status=201,
    )
    content = operation["requestBody"]["content"]
    content["application/yaml"] = content["application/json"]
    operation["responses"]["200"] = operation["responses"]["201"]
    return operation


def _flow() -> Json:
    return _operation(
        "Shows a flow",
        ref("WholeFlow"),
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_NAME, query("version", _VERSION)],
    )


def _remove() -> Json:
    return _operation(
        "Removes a flow with all its versions; its runs stay",
        object_of({"name": TEXT}),
        ("NOT_FOUND",),
        parameters=[_NAME],
    )


def _start_run() -> Json:
    operation = _operation(
        "Starts a run; 200 if it already exists",
        ref("FlowRun"),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        body="NewRun",
        example={"run_id": "first", "inputs": {"name": "Bo"}},
        parameters=[_NAME],
        status=202,
    )
    operation["requestBody"]["required"] = False
    operation["responses"]["200"] = operation["responses"]["202"]
    return operation


def _steps() -> Json:
    return _operation(
        "Lists the finished steps with bounded, redacted copies of their inputs and outputs",
        object_of({"run_id": TEXT, "steps": array_of("Step"), "steps_total": COUNT}),
        ("INVALID_REQUEST", "NOT_FOUND", "CONFLICT"),
        parameters=[_ID, query("limit", up_to(MAX_PAGE_SIZE)), query("offset", COUNT)],
    )


def _retry() -> Json:
    steps: Json = {"type": "array", "items": TEXT}
    return _operation(
        "Repeats a run from a step, with the recorded outputs of the steps before it",
        object_of({"ok": {"const": True}, "run_id": TEXT, "repeated": steps, "kept": steps}),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        body="Retry",
        example={"from": "order"},
        parameters=[_ID],
        status=202,
    )


def _approvals() -> Json:
    return _operation(
        "Lists the steps that wait for an approval",
        object_of({"run_id": TEXT, "approvals": array_of("Approval"), "approvals_total": COUNT}),
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_ID, query("limit", up_to(MAX_PAGE_SIZE)), query("offset", COUNT)],
    )


def _approve() -> Json:
    step = path_param("step_id", TEXT)
    return _operation(
        "Approves or rejects a step",
        object_of({"ok": {"const": True}, "run_id": TEXT, "step_id": TEXT, "approved": {"type": "boolean"}}),
        ("NOT_FOUND", "CONFLICT"),
        body="ApprovalDecision",
        example={"approved": True, "reason": "checked the amount"},
        parameters=[_ID, step],
    )


_ID = path_param("id", {"type": "string", "maxLength": MAX_ID_CHARS})
_NAME = path_param("name", TEXT)

# --- schemas ---


def _failure(codes: Sequence[str]) -> Json:
    problem = object_of({"path": TEXT, "message": TEXT})
    error = object_of(
        {"code": {"enum": sorted(codes)}, "message": TEXT},
        {"problems": {"type": "array", "items": problem}, "limit": LIMIT_NAME},
    )
    return object_of({"success": {"const": False}, "error": error})


_operation = OperationBuilder(FLOW_ERRORS, _ALWAYS, _failure)


def _schemas() -> Json:
    flow: Json = {"name": TEXT, "version": _VERSION, "created_at": TIME, "updated_at": TIME}
    run: Json = {
        "run_id": TEXT,
        "door": {"const": "rep"},
        "flow": TEXT,
        "version": {"type": ["integer", "null"]},
        "state": _STATE,
        "status": _FORMER_STATUS,
        "outcome": _OUTCOME,
        "created_at": TIME,
        "started_at": _TIME_OR_NULL,
        "ended_at": _TIME_OR_NULL,
    }
    return {
        "FlowIR": {"type": "object", "description": "Flow IR 1.0.0, including its name"},
        "FlowSource": {"type": "object", "description": "Flow IR 1.0.0, or the short form of a flow"},
        "Flow": object_of(flow),
        "WholeFlow": object_of(
            {
                **flow,
                "inputs_json_schema": {"type": "object", "description": "JSON Schema of all inputs of a run"},
                "document": ref("FlowIR"),
            }
        ),
        "NewRun": _new_run(),
        "FlowRun": object_of(run),
        "Summary": _summary(),
        "Step": object_of(
            {
                "step_id": TEXT,
                "kind": TEXT,
                "state": {"enum": ["succeeded", "failed"]},
                "attempt": COUNT,
                "duration_ms": {"type": "number", "minimum": 0},
                "ended_at": TIME,
                "input": {"description": "Parameters with resolved references, shortened and redacted"},
            },
            {
                "output": {"description": "Shortened and redacted"},
                "error": object_of({"code": {"type": "integer"}, "message": TEXT}),
            },
        ),
        "Approval": object_of({"step_id": TEXT, "message": TEXT, "asked_at": TIME}),
        "ApprovalDecision": _approval_body(),
        "Retry": object_of({"from": {**TEXT, "description": "Id of a finished step of the flow"}}),
    }


def _new_run() -> Json:
    return object_of(
        {},
        {
            "inputs": {"type": ["object", "null"], "description": "Must match the flow's inputs_schema"},
            "run_id": {
                "type": ["string", "null"],
                "maxLength": MAX_ID_CHARS,
                "description": "Repeating an id returns the same run",
            },
            "version": {"type": ["integer", "null"], "minimum": 1},
            "concurrency": {"type": ["integer", "null"], "minimum": 1},
            "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds"},
        },
    )


def _summary() -> Json:
    return object_of(
        {"completed_steps": COUNT, "failed_steps": COUNT, "total_steps": COUNT},
        {
            "skipped_steps": COUNT,
            "outputs": {"description": "Set once the run is complete"},
            "error": object_of({"code": {"type": "integer"}, "message": TEXT, "data": _OBJECT}),
            "cancelled": {"const": True},
        },
    )


def _approval_body() -> Json:
    text = {"type": ["string", "null"], "maxLength": MAX_ID_CHARS}
    by = {**text, "description": "Name of the approver; ignored for users, who approve in their own name"}
    return object_of({"approved": {"type": "boolean"}}, {"by": by, "reason": text})
