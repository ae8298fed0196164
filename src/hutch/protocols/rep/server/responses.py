"""HTTP responses: flows, runs of every protocol, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from hutch.http.errors import ERROR_KINDS, ApiError
from hutch.protocols.rep.ir.flow import count_steps
from hutch.protocols.rep.ir.inputs import as_json_schema
from hutch.protocols.rep.runtime import lease
from hutch.store.models import FlowHead, FlowRow, FlowRunHead, FlowRunRow
from hutch.store.tables.journal import JournalEntry, StepCounts

FLOW_ERRORS = {**ERROR_KINDS, "unavailable": ERROR_KINDS["busy"]}


def error_response(error: ApiError) -> Response:
    kind = FLOW_ERRORS[error.kind]
    body = {"code": kind.code, "message": error.message, **error.extra}
    return json_response({"success": False, "error": body}, kind.status, error.headers)


def run_not_found(run_id: str) -> ApiError:
    """Builds the error for an unknown run. It is also used for the runs of other owners."""
    return ApiError("not_found", f"There is no run {run_id[:200]!r}")


def flow_not_found(name: str) -> ApiError:
    return ApiError("not_found", f"There is no flow {name[:200]!r}")


class JsonText(str):
    """Stored JSON that is sent unchanged: decoding megabytes of it would block the event loop."""

    __slots__ = ()


def encode_json(body: Mapping[str, Any]) -> str:
    """Encodes an object. Its members may be JsonText."""
    # Encode as ASCII, because outputs of steps may contain lone surrogates.
    members = (
        f"{json.dumps(name)}: {value if isinstance(value, JsonText) else json.dumps(value)}"
        for name, value in body.items()
    )
    return f"{{{', '.join(members)}}}"


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(encode_json(body), status, headers, "application/json")


class _FlowInputs(msgspec.Struct):
    inputs_schema: dict[str, Any] = {}


def flow_head(row: FlowHead) -> dict[str, Any]:
    """Builds the list entry of a flow."""
    return {
        "name": row.name,
        "version": row.version,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def flow_detail(row: FlowRow) -> dict[str, Any]:
    inputs = msgspec.json.decode(row.document, type=_FlowInputs).inputs_schema
    schema = as_json_schema(inputs)
    return {**flow_head(row), "inputs_json_schema": schema, "document": JsonText(row.document)}


def run_head(run: FlowRunHead) -> dict[str, Any]:
    """Builds the list entry of a flow run."""
    return {
        "run_id": run.run_id,
        "door": "rep",
        "flow": run.flow,
        "version": run.version,
        "state": lease.run_state(run),
        "status": run.status,  # former name of `state`, until version 0.3
        "outcome": run.outcome,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
    }


def step_record(entry: JournalEntry) -> dict[str, Any]:
    """Builds a finished step with bounded copies of its input and output."""
    record = json.loads(entry.body)
    del record["type"]
    record["ended_at"] = record.pop("timestamp")
    return dict(record)


def run_detail(run: FlowRunRow, counts: StepCounts, pages: Mapping[str, Any]) -> dict[str, Any]:
    """Builds a flow run with its inputs and summary. Until the run ends, the summary contains only step
    counts.

    `pages` contains the first page of the finished steps and the first page of the approvals.
    """
    summary: Any
    if run.summary is not None:
        summary = JsonText(run.summary)
    else:
        summary = {
            "completed_steps": counts.completed,
            "failed_steps": counts.failed,
            "total_steps": count_steps(run.document),
        }
    return {**run_head(run), "inputs": JsonText(run.inputs), "summary": summary, **pages}
