"""Responses of the queue's routes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

from hutch.http.errors import ERROR_KINDS, ApiError
from hutch.store.tables.queue.queued_runs import QueuedRunRow
from hutch.store.tables.queue.schedules import SavedScript, Schedule, StarterRow, Trigger
from hutch.store.tables.queue.webhooks import DeliveryRow
from hutch.text import format_unix_time


def json_response(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    kind = ERROR_KINDS[error.kind]
    body = {"success": False, "error": {"code": kind.code, "message": error.message, **error.extra}}
    return JSONResponse(body, kind.status, error.headers)


def time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return format_unix_time(milliseconds / 1000)


def queued_run(row: QueuedRunRow) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "owner": row.owner,
        "kind": row.kind,
        "label": row.label,
        "source": row.source,
        "state": row.state,
        "priority": row.priority,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "created_at": time_text(row.created_at),
        "due_at": time_text(row.due_at),
        "ended_at": time_text(row.ended_at),
        "outcome": row.outcome,
    }


def delivery(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "run_id": row.run_id,
        "owner": row.owner,
        "event": row.event,
        "state": row.state,
        "created_at": time_text(row.created_at),
        "next_at": time_text(row.next_at) if row.state == "pending" else None,
        "attempts": [
            {
                "at": time_text(attempt.at),
                "duration_ms": attempt.duration_ms,
                "status": attempt.status,
                "error": attempt.error,
            }
            for attempt in row.attempt_list
        ],
        "attempt_count": row.attempts,
    }


def script(row: SavedScript, *, with_code: bool = False) -> dict[str, Any]:
    code = {"code": row.code} if with_code else {}
    return {"name": row.name, "engine": row.engine, "updated_at": time_text(row.updated_at), **code}


def _starter(row: StarterRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "owner": row.owner,
        "name": row.name,
        row.target_kind: row.target,
        "paused": row.is_paused,
        "created_at": time_text(row.created_at or None),
        "last_at": time_text(row.last_at),
        "last_run_id": row.last_run_id,
    }


def schedule(row: Schedule) -> dict[str, Any]:
    return {
        **_starter(row),
        "cron": row.cron,
        "timezone": row.timezone,
        "missed": row.missed,
        "next_at": None if row.is_paused else time_text(row.next_at),
    }


def trigger(row: Trigger) -> dict[str, Any]:
    return {**_starter(row), "signature": row.signature}
