"""What is kept of every run. Until there is a store, it goes to the structured log."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from hutch.session.host import CallRecord, Limits, Outcome

if TYPE_CHECKING:
    from hutch.kernel import Execution

logger = logging.getLogger("hutch.runs")


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
    """`ok`, or the error's code."""
    line: int | None = None
    """Where in its code it failed."""
    reason: str | None = None
    """What became of a runner that was lost."""
    limits: Limits
    log_lines: int
    logs_truncated: bool
    tool_calls: int
    calls: list[CallRecord]

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
            outcome=error.code if error else "ok",
            line=error.line if error else None,
            reason=error.message if error and outcome.lost else None,
            limits=execution.limits,
            log_lines=len(outcome.logs),
            logs_truncated=outcome.logs_truncated,
            tool_calls=outcome.call_count,
            calls=outcome.calls,
        )


def log_run(run_id: str, execution: Execution, outcome: Outcome, began: float) -> None:
    """Writes the record where an operator's log goes; formatting is the log's own business."""
    if logger.isEnabledFor(logging.INFO):
        fields = msgspec.to_builtins(RunRecord.of(run_id, execution, outcome, began))
        # Which engine stands in the record itself; among the limits it is for other servers only.
        fields["limits"].pop("engine", None)
        logger.info("run", extra={"fields": fields})
