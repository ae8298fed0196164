"""How a run of a flow ended, in the words that the runs of all doors are kept in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from hutch.doors.rep.codes import TIMEOUT
from hutch.doors.rep.steps import Summary
from hutch.store.rows import FlowRunHead, RunRow

DOOR = "rep"
ENGINE = "hutch"
_COUNTS = ("completed_steps", "failed_steps", "skipped_steps", "total_steps")


def outcome(summary: Summary) -> str:
    """`ok`, or what went wrong."""
    if summary.error is None:
        return "ok"
    return "cancelled" if summary.cancelled else word_for(summary.error)


def word_for(error: dict[str, Any]) -> str:
    """By the class of its code; what took too long is named so."""
    data = error.get("data")
    if isinstance(data, dict) and data.get("cause") == TIMEOUT:
        return "timeout"
    return {1: "invalid_flow", 2: "step_failed"}.get(error["code"] // 1000, "runtime_failed")


def record_of(run: FlowRunHead, summary: Summary, at: str) -> RunRow:
    """What is kept of it: how long, how far, and how it ended; nothing of what it was given and gave."""
    counts = {name: getattr(summary, name) for name in _COUNTS}
    began = run.started_at or run.created_at
    return RunRow(
        run_id=run.run_id,
        owner=run.owner,
        door=DOOR,
        engine=ENGINE,
        label=run.flow,
        started_at=began,
        duration_ms=max(0.0, _moment(at) - _moment(began)) * 1000,
        outcome=outcome(summary),
        details=msgspec.json.encode(counts).decode(),
    )


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
