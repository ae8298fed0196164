"""What the door says: flows, runs of every door, and failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from hutch.doors import failing
from hutch.doors.rep import holders
from hutch.store.journal import Counts
from hutch.store.rows import FlowHead, FlowRow, FlowRunHead, FlowRunRow, RunRow

STATUS = {
    "INVALID_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CONFLICT": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "RATE_LIMITED": 429,
    "INTERNAL_ERROR": 500,
    "BUSY": 503,
}
REFUSED = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 503: "BUSY"}


class Failed(failing.Failed):
    """In the shape of this door."""

    def response(self) -> Response:
        error = {"code": self.code, "message": self.message, **self.more}
        return answer({"success": False, "error": error}, STATUS[self.code], self.headers)


def no_run(run_id: str) -> Failed:
    """The same for what nobody has and for what is another's."""
    return Failed("NOT_FOUND", f"There is no run {run_id[:200]!r}")


def no_flow(name: str) -> Failed:
    return Failed("NOT_FOUND", f"There is no flow {name[:200]!r}")


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII: what steps gave may have half a character in it.
    return Response(json.dumps(body), status, headers, "application/json")


def flow(row: FlowHead) -> dict[str, Any]:
    """A flow, for lists."""
    return {
        "name": row.name,
        "version": row.version,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def whole_flow(row: FlowRow) -> dict[str, Any]:
    return {**flow(row), "document": json.loads(row.document)}


def head(run: FlowRunHead) -> dict[str, Any]:
    """A run of a flow, for lists."""
    return {
        "run_id": run.run_id,
        "door": "rep",
        "flow": run.flow,
        "version": run.version,
        "status": run.status,
        "state": holders.state(run),
        "outcome": run.outcome,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
    }


def flow_run(run: FlowRunRow, counts: Counts, approvals: Mapping[str, Any]) -> dict[str, Any]:
    """A run of a flow; while it goes on, how far it is. `approvals`: what steps ask."""
    if run.summary is not None:
        summary = json.loads(run.summary)
    else:
        total = len(json.loads(run.document)["graph"]["nodes"])
        summary = {
            "completed_steps": counts.completed,
            "failed_steps": counts.failed,
            "total_steps": total,
        }
    return {**head(run), "inputs": json.loads(run.inputs), "summary": summary, **approvals}


def other_run(run: RunRow) -> dict[str, Any]:
    """A run of another door: they are known once they are over."""
    return {
        "run_id": run.run_id,
        "door": run.door,
        "engine": run.engine,
        "label": run.label,
        "status": "completed" if run.outcome == "ok" else "failed",
        "outcome": run.outcome,
        "started_at": run.started_at,
        "duration_ms": run.duration_ms,
        "details": json.loads(run.details),
    }
