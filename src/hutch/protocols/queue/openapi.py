"""OpenAPI description of the queue's routes."""

from __future__ import annotations

from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import (
    COUNT,
    FLAG,
    TEXT,
    TIME,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    failure,
    object_of,
    path_param,
    query,
    ref,
)
from hutch.queue.models import MAX_ATTEMPTS

_DESCRIPTION = """\
Asynchronous runs that wait or have failed, webhooks about their ends, and what starts flows and saved
scripts: schedules and triggers. A user's key sees what belongs to that user, the operator's key all."""
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "UNAVAILABLE")
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
_OK = {"ok": {"const": True}}
_ID, _NAME = path_param("id", TEXT), path_param("name", TEXT)
_operation = OperationBuilder(ERROR_KINDS, _ALWAYS, failure)


def describe() -> ApiPart:
    missing = ("NOT_FOUND",)
    removed = object_of({**_OK, "name": TEXT})
    paths: Json = {
        "/queue": {"get": _operation("Lists runs that wait, run or have failed", ref("Queue"))},
        "/queue/{id}": {
            "delete": _operation(
                "Removes a dead letter from the list",
                object_of({**_OK, "run_id": TEXT}),
                ("NOT_FOUND", "CONFLICT"),
                parameters=[_ID],
            )
        },
        "/queue/{id}/retry": {
            "post": _operation(
                "Queues a dead letter again",
                object_of({**_OK, "run_id": TEXT}),
                ("NOT_FOUND", "CONFLICT"),
                parameters=[_ID],
                status=202,
            )
        },
        "/webhooks": {
            "get": _operation(
                "Lists webhook messages with the responses of their targets",
                object_of({"deliveries": array_of("WebhookDelivery")}),
                ("INVALID_REQUEST",),
                parameters=[query("run_id", TEXT)],
            )
        },
        "/webhooks/secret": {
            "get": _operation("Returns the secret that signs webhooks", object_of({"secret": TEXT})),
            "post": _operation("Replaces the secret that signs webhooks", object_of({"secret": TEXT})),
        },
        "/webhooks/{id}/send": {
            "post": _operation(
                "Sends a webhook message again",
                object_of({**_OK, "id": TEXT}),
                missing,
                parameters=[_ID],
                status=202,
            )
        },
        "/scripts": {
            "get": _operation("Lists saved scripts", object_of({"scripts": array_of("SavedScript")}))
        },
        "/scripts/{name}": {
            "get": _operation("Returns a saved script", ref("SavedScript"), missing, parameters=[_NAME]),
            "put": _operation(
                "Saves a script",
                ref("SavedScript"),
                body="SaveScript",
                example={"code": "return 1", "engine": "quickjs"},
                parameters=[_NAME],
            ),
            "delete": _operation("Removes a saved script", removed, missing, parameters=[_NAME]),
        },
        "/schedules": _starters(
            "schedule", "Schedule", {"name": "nightly", "script": "report", "cron": "0 3 * * *"}
        ),
        "/schedules/{name}": _starter("schedule", "Schedule"),
        "/triggers": _starters(
            "trigger", "Trigger", {"name": "push", "flow": "build", "signature": "github"}
        ),
        "/triggers/{name}": _starter("trigger", "Trigger"),
        "/hooks/{token}": {"post": _hook()},
    }
    return ApiPart("Queue", _DESCRIPTION, paths, _schemas())


def _starters(noun: str, schema: str, example: Json) -> Json:
    added = ref(schema) if noun == "schedule" else ref("NewTrigger")
    return {
        "get": _operation(f"Lists {noun}s", object_of({f"{noun}s": array_of(schema)})),
        "post": _operation(
            f"Adds a {noun}", added, ("CONFLICT",), body=f"Add{schema}", example=example, status=201
        ),
    }


def _starter(noun: str, schema: str) -> Json:
    return {
        "patch": _operation(
            f"Pauses or continues a {noun}",
            ref(schema),
            ("NOT_FOUND",),
            body="Pause",
            example={"paused": True},
            parameters=[_NAME],
        ),
        "delete": _operation(
            f"Removes a {noun}", object_of({**_OK, "name": TEXT}), ("NOT_FOUND",), parameters=[_NAME]
        ),
    }


def _hook() -> Json:
    operation = _operation(
        "Starts the run of a trigger; its body is whatever the other service sends",
        object_of({**_OK, "runId": TEXT}),
        (
            "INVALID_REQUEST",
            "NOT_FOUND",
            "CONFLICT",
            "PAYLOAD_TOO_LARGE",
            "UNSUPPORTED_MEDIA_TYPE",
            "RATE_LIMITED",
            "BUSY",
        ),
        parameters=[path_param("token", TEXT)],
        status=202,
    )
    operation["security"] = []
    return operation


def _schemas() -> Json:
    start: Json = {
        "flow": _TEXT_OR_NULL,
        "script": _TEXT_OR_NULL,
        "inputs": {"type": "object"},
        "attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ATTEMPTS},
        "webhook": {"description": "A URL, or an object with url and secret"},
    }
    starter: Json = {
        "id": TEXT,
        "owner": TEXT,
        "name": TEXT,
        "paused": FLAG,
        "created_at": _TIME_OR_NULL,
        "last_at": _TIME_OR_NULL,
        "last_run_id": _TEXT_OR_NULL,
    }
    target: Json = {"flow": TEXT, "script": TEXT}
    missed: Json = {"enum": ["skip", "once", "all"]}
    signature: Json = {"enum": ["none", "github", "stripe", "standard"]}
    trigger = {**starter, "signature": signature}
    return {
        "Queue": object_of(
            {
                "counts": {"type": "object", "additionalProperties": COUNT},
                "runs": {"type": "array", "items": {"type": "object"}},
            }
        ),
        "WebhookDelivery": object_of(
            {
                "id": TEXT,
                "run_id": TEXT,
                "owner": TEXT,
                "event": {"enum": ["run.completed", "run.failed"]},
                "state": {"enum": ["pending", "delivered", "failed"]},
                "created_at": TIME,
                "next_at": _TIME_OR_NULL,
                "attempts": {"type": "array", "items": {"type": "object"}},
                "attempt_count": COUNT,
            }
        ),
        "SavedScript": object_of({"name": TEXT, "engine": TEXT, "updated_at": TIME}, {"code": TEXT}),
        "SaveScript": object_of({"code": TEXT}, {"engine": {"enum": ["script", "quickjs", "deno"]}}),
        "AddSchedule": object_of({"name": TEXT, "cron": TEXT}, {**start, "timezone": TEXT, "missed": missed}),
        "Schedule": object_of(
            {**starter, "cron": TEXT, "timezone": TEXT, "missed": missed, "next_at": _TIME_OR_NULL}, target
        ),
        "AddTrigger": object_of(
            {"name": TEXT},
            {
                **start,
                "signature": signature,
                "secret": _TEXT_OR_NULL,
                "map": {"type": "object", "additionalProperties": TEXT},
            },
        ),
        "Trigger": object_of(trigger, target),
        "NewTrigger": object_of({**trigger, "url": TEXT, "secret": _TEXT_OR_NULL}, target),
        "Pause": object_of({"paused": FLAG}),
    }
