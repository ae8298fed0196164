"""OpenAPI description of the routes for runs."""

from __future__ import annotations

from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import (
    COUNT,
    FLAG,
    NEXT_PAGE,
    TEXT,
    TIME,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    failure,
    header,
    object_of,
    path_param,
    query,
    ref,
    up_to,
)
from hutch.protocols.runs.filters import LIST_PARAMETERS, MAX_PAGE_SIZE, STATUSES
from hutch.queue.models import MAX_ATTEMPTS, MAX_DELAY_MS, MAX_KEY_CHARS, MAX_PRIORITY
from hutch.queue.requests import IDEMPOTENCY_HEADER

_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
_NUMBER_OR_NULL: Json = {"type": ["number", "null"]}
_LINE: Json = {"type": ["integer", "null"]}
_ANY: Json = {}
_OBJECT: Json = {"type": "object"}
_STATUS: Json = {"enum": [*STATUSES]}
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "UNAVAILABLE")
_ID = path_param("id", TEXT)

_DESCRIPTION = """\
Runs of all protocols: those in progress, and the records of those that have ended. The operator's key sees
all runs; a user's key sees that user's runs of the protocols in its scopes."""


def describe() -> ApiPart:
    paths = {
        "/runs": {"get": _list(), "post": _add()},
        "/runs/{id}": {"get": _show()},
        "/runs/{id}/events": {"get": _events()},
        "/runs/{id}/result": {"get": _result()},
        "/runs/{id}/files/{name}": {"get": _file()},
        "/runs/{id}/cancel": {"post": _cancel()},
        "/runs/{id}/replay": {"post": _replay()},
        "/runs/{id}/resume": {"post": _resume()},
        "/calls/{token}": {"post": _resolve()},
    }
    return ApiPart("Runs", _DESCRIPTION, paths, _schemas())


# Each filter accepts several values, separated by commas.
_FILTERS = {
    "status": f"{', '.join(STATUSES)}",
    "protocol": "Protocol, such as `execbox`",
    "owner": "Id or name of the user",
    "code": "Outcome: `ok` or an error code",
    "engine": "Engine, such as `quickjs`",
    "label": "Label of the run",
    "tool": "A tool that the run called: `provider.tool`",
    "host": "A host that the run sent a request to",
    "text": "Text in the label or the error message",
}
_SINGLE = {
    "parent": "Id of the run that started it",
    "since": "Time, or how long ago: `1h`, `2d`",
    "until": "Time, or how long ago",
    "cursor": "`next` of the page before",
    "before": "Another name of `cursor`",
}


def _list() -> Json:
    filters = [query(name, {**TEXT, "description": _FILTERS[name]}) for name in LIST_PARAMETERS]
    excluding = [
        query(f"not_{name}", {**TEXT, "description": f"Leaves out runs that `{name}` would list"})
        for name in LIST_PARAMETERS
    ]
    return _operation(
        "Lists runs",
        ref("RunList"),
        ("INVALID_REQUEST", "BUSY"),
        parameters=[
            *filters,
            *excluding,
            *(query(name, {**TEXT, "description": text}) for name, text in _SINGLE.items()),
            query("sort", {"enum": ["created", "duration"]}),
            query("order", {"enum": ["asc", "desc"]}),
            query("limit", up_to(MAX_PAGE_SIZE)),
            query("counts", FLAG),
        ],
    )


def _add() -> Json:
    return _operation(
        "Adds an asynchronous run to the queue; responds when it is stored",
        object_of({"runId": TEXT, "statusUrl": TEXT}),
        ("CONFLICT", "BUSY"),
        body="AsyncRun",
        example={"async": True, "kind": "code", "request": {"code": "return 1 + 1"}},
        parameters=[header(IDEMPOTENCY_HEADER, TEXT, "Another place for `idempotency_key`")],
        status=202,
    )


def _show() -> Json:
    schema: Json = {"oneOf": [ref("Execution"), ref("WholeFlowRun")]}
    return _operation("Shows a run", schema, ("NOT_FOUND",), parameters=[_ID])


def _events() -> Json:
    last = header("Last-Event-ID", COUNT, "Number of the last event that was received")
    operation = _operation(
        "Streams the events of a run, and finally `end`, or `interrupted` for a flow run without a process",
        TEXT,
        ("INVALID_REQUEST", "NOT_FOUND"),
        parameters=[_ID, last, query("after", COUNT)],
    )
    operation["responses"]["200"]["content"] = {"text/event-stream": {"schema": TEXT}}
    return operation


def _result() -> Json:
    summary = "Returns the result of an asynchronous run, or of code that was suspended and has ended"
    schema: Json = {"oneOf": [ref("RunResult"), {"description": "Response of another kind of run"}]}
    return _operation(summary, schema, ("NOT_FOUND", "CONFLICT"), parameters=[_ID])


def _file() -> Json:
    operation = _operation(
        "Returns a file that the run wrote, if it was recorded",
        TEXT,
        ("NOT_FOUND",),
        parameters=[_ID, path_param("name", TEXT)],
    )
    operation["responses"]["200"]["content"] = {"application/octet-stream": {"schema": TEXT}}
    return operation


def _cancel() -> Json:
    status: Json = {"enum": ["cancelled", "cancelling"]}
    schema = object_of({"ok": {"const": True}, "run_id": TEXT, "status": status})
    return _operation("Cancels a run", schema, ("NOT_FOUND", "CONFLICT"), parameters=[_ID])


def _replay() -> Json:
    operation = _operation(
        "Runs recorded code again; with `wait`, responds 200 with the new run when it has ended",
        object_of({"run_id": TEXT, "parent_run_id": TEXT, "mode": _MODE}),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        body="Replay",
        example={"mode": "recorded"},
        parameters=[_ID, query("wait", FLAG)],
        status=202,
    )
    operation["requestBody"]["required"] = False
    finished = {"description": "OK", "content": {"application/json": {"schema": ref("Execution")}}}
    operation["responses"]["200"] = finished
    return operation


def _resume() -> Json:
    operation = _operation(
        "Continues a suspended run of code with results of its pending calls, or a failed or cancelled flow"
        " run; with `wait`, responds 200 with the result of the code",
        object_of({"ok": {"const": True}, "run_id": TEXT}),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        body="Resume",
        example={"results": {"3f2a-1": "yes"}},
        parameters=[_ID, query("wait", FLAG)],
        status=202,
    )
    operation["requestBody"]["required"] = False
    finished = {"description": "OK", "content": {"application/json": {"schema": ref("RunResult")}}}
    operation["responses"]["200"] = finished
    return operation


def _resolve() -> Json:
    operation = _operation(
        "Delivers the result of a tool call that was deferred with a token; the token is the authority",
        object_of({"ok": {"const": True}}),
        ("NOT_FOUND", "CONFLICT", "RATE_LIMITED"),
        body="CallResult",
        example={"result": "yes"},
        parameters=[path_param("token", TEXT)],
    )
    operation["security"] = []
    return operation


_MODE: Json = {"enum": ["same", "recorded"]}


_operation = OperationBuilder(ERROR_KINDS, _ALWAYS, failure)


def _schemas() -> Json:
    common = _common()
    counts = dict.fromkeys(STATUSES, COUNT)
    return {
        "RunList": object_of(
            {"runs": array_of("Run"), "is_partial": FLAG},
            {
                "next": NEXT_PAGE,
                "searched_to": TIME,
                "counts": object_of(counts),
                "counts_complete": FLAG,
            },
        ),
        "Run": object_of(common, _flow_fields()),
        "Execution": object_of(
            {
                **common,
                "code_hash": _TEXT_OR_NULL,
                "trace_id": _TEXT_OR_NULL,
                "limits": _OBJECT,
                "retries": COUNT,
                "tool_calls": array_of("ToolCall"),
                "tool_call_count": COUNT,
                "requests": {"type": "array", "items": _OBJECT},
                "request_count": COUNT,
                "waits": array_of("Wait"),
                "logs_truncated": FLAG,
                "replay": object_of({"same": FLAG, "recorded": FLAG, "reason": _TEXT_OR_NULL}),
            },
            {
                "code": _ANY,
                "inputs": _ANY,
                "output": _ANY,
                "logs": array_of("RunLog"),
                "turn": COUNT,
                "files": array_of("RunFile"),
                "pending_calls": {**array_of("PendingCall"), "description": "Only of a suspended run"},
                "tools_elsewhere": {
                    **FLAG,
                    "description": "Only of a suspended run. True if only its program can continue it",
                },
                "queue": ref("QueuedRun"),
                "result": {"description": "Result of an asynchronous run that has ended"},
            },
        ),
        "AsyncRun": _async_run(),
        "QueuedRun": _queued_run(),
        "WholeFlowRun": object_of(
            {
                **common,
                **_flow_fields(),
                "inputs": _OBJECT,
                "summary": ref("Summary"),
                "steps": {**array_of("Step"), "description": "First page of the finished steps"},
                "steps_total": COUNT,
                "approvals": {**array_of("Approval"), "description": "First page"},
                "approvals_total": COUNT,
            },
            extra_fields=True,
        ),
        "RunError": object_of(
            {"code": TEXT},
            {"message": TEXT, "name": _TEXT_OR_NULL, "line": _LINE, "column": _LINE, "stack": _TEXT_OR_NULL},
        ),
        "ToolCall": object_of(
            {
                "provider": TEXT,
                "tool": TEXT,
                "label": TEXT,
                "line": _LINE,
                "start_ms": _NUMBER_OR_NULL,
                "duration_ms": _NUMBER_OR_NULL,
                "ok": FLAG,
                "code": _TEXT_OR_NULL,
            },
            {"message": TEXT, "input": _ANY, "output": _ANY},
        ),
        "Wait": object_of(
            {
                "kind": {"enum": ["queue", "install", "start", "approval"]},
                "start_ms": {"type": "number"},
                "duration_ms": {"type": "number"},
            },
            {"subject": TEXT},
        ),
        "RunFile": object_of({"name": TEXT, "mime_type": TEXT, "size": COUNT, "recorded": FLAG}),
        "PendingCall": object_of(
            {
                "call_id": TEXT,
                "provider": _TEXT_OR_NULL,
                "tool": _TEXT_OR_NULL,
                "message": {**_TEXT_OR_NULL, "description": "What the tool said about the wait"},
                "is_question": {**FLAG, "description": "True if the call waits for an approval"},
                "has_answer": FLAG,
            }
        ),
        "RunLog": object_of({"line": TEXT, "at_ms": _NUMBER_OR_NULL}),
        "Resume": object_of(
            {},
            {
                "results": {**_OBJECT, "description": "Results by the ids of the calls"},
                "errors": {"type": "object", "additionalProperties": TEXT},
            },
        ),
        "CallResult": {
            "oneOf": [object_of({"result": _ANY}), object_of({"error": TEXT})],
        },
        "Replay": object_of(
            {}, {"mode": _MODE, "code": _TEXT_OR_NULL, "inputs": {"type": ["object", "null"]}}
        ),
    }


def _async_run() -> Json:
    webhook: Json = object_of({"url": TEXT}, {"secret": TEXT})
    return object_of(
        {
            "async": {"const": True},
            "kind": {"enum": ["code", "tool", "script", "ability", "flow"]},
            "request": {**_OBJECT, "description": "Body of the synchronous request of this kind"},
        },
        {
            "priority": {"type": ["integer", "null"], "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
            "delay_ms": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_DELAY_MS},
            "deadline_ms": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_DELAY_MS},
            "attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ATTEMPTS},
            "idempotency_key": {"type": ["string", "null"], "minLength": 1, "maxLength": MAX_KEY_CHARS},
            "webhook": {"oneOf": [TEXT, webhook, {"type": "null"}]},
        },
    )


def _queued_run() -> Json:
    return object_of(
        {
            "kind": TEXT,
            "state": {"enum": ["delayed", "queued", "running", "ended", "dead"]},
            "source": _TEXT_OR_NULL,
            "priority": {"type": "integer"},
            "attempts": COUNT,
            "max_attempts": {"type": ["integer", "null"]},
            "created_at": TIME,
            "due_at": TIME,
            "deadline_at": _TIME_OR_NULL,
            "ended_at": _TIME_OR_NULL,
            "outcome": _TEXT_OR_NULL,
            "idempotency_key": _TEXT_OR_NULL,
        }
    )


def _common() -> Json:
    return {
        "run_id": TEXT,
        "kind": {"enum": ["execution", "flow"]},
        "protocol": TEXT,
        "owner": TEXT,
        "owner_name": _TEXT_OR_NULL,
        "label": _TEXT_OR_NULL,
        "engine": TEXT,
        "state": {**TEXT, "description": "As `status`, or a state of a flow run"},
        "status": _STATUS,
        "outcome": {"type": ["string", "null"], "description": "`ok` or an error code"},
        "error": {"oneOf": [{"type": "null"}, ref("RunError")]},
        "created_at": TIME,
        "started_at": _TIME_OR_NULL,
        "ended_at": _TIME_OR_NULL,
        "duration_ms": _NUMBER_OR_NULL,
        "queue_ms": {"type": "number"},
        "install_ms": {"type": "number"},
        "limit": _TEXT_OR_NULL,
        "tool_calls": COUNT,
        "requests": COUNT,
        "log_lines": COUNT,
        "parent_run_id": _TEXT_OR_NULL,
        "recorded": {"enum": ["metadata", "errors", "full", None]},
    }


def _flow_fields() -> Json:
    return {"flow": TEXT, "version": {"type": ["integer", "null"]}, "state": TEXT}
