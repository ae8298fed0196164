"""What is kept of every run: in the structured log and, where there is one, in the store."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.session.host import CallRecord, Limits, Outcome

if TYPE_CHECKING:
    from hutch.kernel import Execution

logger = logging.getLogger("hutch.runs")

_USUAL = msgspec.to_builtins(Limits())


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run: who, what, when, how long, how it ended.

    Never its code, inputs or results, nor what it said when it failed: that may quote any of them.
    """

    run_id: str
    door: str
    owner: str
    engine: str
    label: str | None = None
    started_at: str
    duration_ms: float
    outcome: str
    """`ok`, or the code of what went wrong."""
    line: int | None = None
    """Where in its code it failed."""
    reason: str | None = None
    """What became of a runner that was lost."""
    limits: Limits
    log_lines: int
    logs_truncated: bool
    tool_calls: int
    calls: list[CallRecord]
    requests: list[Any] = []
    """What it asked of others' servers: where and how much, never what."""

    @classmethod
    def of(cls, run_id: str, execution: Execution, outcome: Outcome, began: float) -> RunRecord:
        error = outcome.error
        return cls(
            run_id=run_id,
            door=execution.door,
            owner=execution.owner,
            engine=execution.profile.engine,
            label=execution.label,
            started_at=datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
            duration_ms=outcome.duration_ms,
            outcome=execution.code_of(outcome),
            line=error.line if error else None,
            reason=error.message if error and outcome.lost else None,
            limits=execution.limits,
            log_lines=len(outcome.logs),
            logs_truncated=outcome.logs_truncated,
            tool_calls=outcome.call_count,
            calls=outcome.calls,
            requests=list(execution.requests),
        )


def is_logged() -> bool:
    return logger.isEnabledFor(logging.INFO)


def log_run(run_id: str, execution: Execution, outcome: Outcome, began: float) -> None:
    """Writes a run's record where an operator's log goes."""
    if is_logged():
        log_record(RunRecord.of(run_id, execution, outcome, began))


def log_record(record: RunRecord) -> None:
    """Formatting is the log's own business."""
    if is_logged():
        logger.info("run", extra={"fields": fields_of(record)})


def fields_of(record: RunRecord) -> dict[str, Any]:
    """What a record says, of limits only those that are not usual."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    # Which engine stands in the record itself; among the limits it is for other servers only.
    usual = {**_USUAL, "engine": fields["limits"]["engine"]}
    fields["limits"] = {name: each for name, each in fields["limits"].items() if each != usual[name]}
    return fields
