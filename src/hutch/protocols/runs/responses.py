"""JSON of the run API: list entries of runs, details of one run, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

from hutch.http.errors import ERROR_KINDS, ApiError
from hutch.kernel.execution import Execution
from hutch.kernel.records import RunRecord, code_hash, record_fields
from hutch.session.json_value import decode_value, encode_value
from hutch.session.limits import Limits
from hutch.session.run import Result, RunHandle
from hutch.store.models import RunRow
from hutch.store.tables.run_search import status_of

_DEFAULT_LIMITS = msgspec.to_builtins(Limits())


def ended_entry(row: RunRow, details: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the list entry of a run that has ended."""
    is_ok = row.outcome == "ok"
    is_flow = "completed_steps" in details
    status = status_of(row.outcome)
    state = row.outcome if row.outcome == "cancelled" else status
    flow = {"flow": row.label, "version": details.get("version")} if is_flow else {}
    return {
        "run_id": row.run_id,
        "kind": "flow" if is_flow else "execution",
        "protocol": row.protocol,
        "owner": row.owner,
        "owner_name": None,
        "label": row.label,
        "engine": row.engine,
        "state": state,
        "status": status,
        "outcome": row.outcome,
        "error": None if is_ok else _short_error(row, details),
        "created_at": row.created_at,
        "started_at": details.get("started_at"),
        "ended_at": details.get("ended_at"),
        "duration_ms": row.duration_ms,
        "queue_ms": details.get("queue_ms", 0.0),
        "install_ms": details.get("install_ms", 0.0),
        "limit": details.get("limit"),
        "tool_calls": details.get("tool_calls", 0),
        "requests": len(details.get("requests", ())),
        "log_lines": details.get("log_lines", 0),
        "parent_run_id": row.parent_run_id,
        "recorded": row.recorded,
        **flow,
    }


def _short_error(row: RunRow, details: Mapping[str, Any]) -> dict[str, Any]:
    message = {} if row.error_message is None else {"message": row.error_message}
    return {"code": row.outcome, **message, "line": details.get("line")}


def ended_detail(row: RunRow, details: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the details of a run that has ended. `content` is empty if no content was recorded."""
    entry = ended_entry(row, details)
    # Ignore the recorded error of a successful run. It may be from the time when the run was suspended.
    error = None if row.outcome == "ok" else content.get("error")
    calls = content.get("calls") or details.get("calls", [])
    kept = {name: content[name] for name in ("code", "inputs", "output", "logs") if name in content}
    if "files" in content:
        kept["files"] = [_file(file) for file in content["files"]]
    return {
        **entry,
        "code_hash": details.get("code_hash"),
        "trace_id": details.get("trace_id"),
        "limits": {**_DEFAULT_LIMITS, **details.get("limits", {})},
        "retries": details.get("retries", 0),
        "error": error or entry["error"],
        "tool_calls": [_call(call) for call in calls],
        "tool_call_count": entry["tool_calls"],
        "requests": [_request(request) for request in details.get("requests", ())],
        "request_count": entry["requests"],
        "waits": _waits(entry, details),
        **kept,
        **({"turn": details["turn"]} if "turn" in details else {}),
        "logs_truncated": details.get("logs_truncated", False),
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"line": None, "start_ms": None, "duration_ms": None, "ok": False, "code": None}
    return {**named, **call, "label": call_label(call)}


def call_label(call: Mapping[str, Any]) -> str:
    """Returns the tool name and the first argument, to distinguish the call from other calls of the same
    tool.
    """
    values = call.get("input")
    shown = []
    if isinstance(values, Mapping):
        shown = [str(value) for value in values.values() if isinstance(value, str | int | float)]
    elif isinstance(values, str | int | float):
        shown = [str(values)]
    if not shown:
        return str(call["tool"])
    text = shown[0] if len(shown[0]) <= 30 else f"{shown[0][:29]}…"
    return f"{call['tool']} {'#' if text.isdecimal() else ''}{text}"


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    """Describes a file. Its content is at `/runs/{id}/files/{name}`."""
    described = {name: file[name] for name in ("name", "mime_type", "size")}
    return {**described, "recorded": file.get("data") is not None}


def _request(request: Mapping[str, Any]) -> dict[str, Any]:
    renamed = dict(request)
    renamed["duration_ms"] = renamed.pop("ms", None)
    return {"start_ms": None, **renamed}


def _waits(entry: Mapping[str, Any], details: Mapping[str, Any]) -> list[dict[str, Any]]:
    waits: list[dict[str, Any]] = []
    before = _milliseconds(entry["created_at"], entry["started_at"])
    queue, install = entry["queue_ms"], entry["install_ms"]
    if install:
        waits.append({"kind": "install", "start_ms": -round(before + install, 3), "duration_ms": install})
    if queue:
        waits.append({"kind": "queue", "start_ms": -round(before, 3), "duration_ms": queue})
    if before - queue > 0:
        waiting = round(before - queue, 3)
        waits.append({"kind": "start", "start_ms": -waiting, "duration_ms": waiting})
    return [*waits, *details.get("waits", ())]


def _milliseconds(start: str | None, end: str | None) -> float:
    if start is None or end is None:
        return 0.0
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * 1000


class ActiveRun:
    """List entry of a run in progress."""

    def __init__(self, execution: Execution, run: RunHandle) -> None:
        self.run = run
        self._execution = execution
        # Omit the hash. Lists do not show it, and computing it takes 1 to 3 ms for a megabyte of code.
        record = RunRecord.of(execution, run, Result(ok=True), with_hash=False)
        self.tools = [f"{call.provider}.{call.tool}" for call in record.calls]
        self.hosts = [request["host"] for request in record.requests]
        self.details = {**record_fields(record), "started_at": record.started_at, "ended_at": None}
        if run.session is not None:
            self.details["log_lines"] = max(record.log_lines, run.session.log_lines)
        row = RunRow(
            run_id=run.id,
            owner=execution.owner,
            protocol=execution.protocol,
            engine=execution.profile.engine,
            label=record.label,
            created_at=record.created_at,
            duration_ms=0.0,
            outcome="ok",
            parent_run_id=execution.parent_run_id,
        )
        self.row = row
        state = "running" if run.has_started else "pending"
        self.entry: dict[str, Any] = {
            **ended_entry(row, self.details),
            "state": state,
            "status": state,
            "outcome": None,
            "duration_ms": None,
            "recorded": None,
        }

    def detail(self) -> dict[str, Any]:
        timeline = self.run.timeline
        content: dict[str, Any] = {}
        if timeline is not None:
            calls = self.run.redacted(msgspec.json.encode([*timeline.calls.values()]).decode())
            content["calls"] = decode_value(calls.encode())
            content["logs"] = [
                {"line": self.run.redacted(log.line), "at_ms": log.at_ms} for log in timeline.logs
            ]
        details = {**self.details, "code_hash": code_hash(self._execution)}
        return {**ended_detail(self.row, details, content), **self.entry_overrides()}

    def entry_overrides(self) -> dict[str, Any]:
        names = ("state", "status", "outcome", "duration_ms", "recorded")
        return {name: self.entry[name] for name in names}


def encode_recorded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Use `encode_value`, because inputs and outputs of guests may contain lone surrogates.
        return encode_value(value)


class JsonBody(JSONResponse):
    def render(self, content: Any) -> bytes:
        return encode_recorded(content)


def error_response(error: ApiError) -> Response:
    kind = ERROR_KINDS[error.kind]
    body = {"success": False, "error": {"code": kind.code, "message": error.message, **error.extra}}
    return JsonBody(body, kind.status, error.headers)
