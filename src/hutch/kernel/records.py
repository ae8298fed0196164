"""Records each run at its end: counts it, logs its record and passes the record to the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.kernel.execution import Execution
from hutch.session.host import Limits
from hutch.session.run import CallRecord, Result, RunHandle
from hutch.text import format_rfc3339

if TYPE_CHECKING:
    from hutch.kernel.metrics import RunCounters

logger = logging.getLogger("hutch.runs")

_DEFAULT_LIMITS = msgspec.to_builtins(Limits())


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of one run: owner, engine, start, duration, outcome.

    It never contains code, inputs or results, and no error messages of guests, because these may quote them.
    """

    run_id: str
    protocol: str
    owner: str
    engine: str
    label: str | None = None
    started_at: str
    duration_ms: float
    outcome: str
    """`ok` or the error code."""
    line: int | None = None
    """Line of the guest code that failed."""
    reason: str | None = None
    """Reason for the loss of the runner; None if it was not lost."""
    limits: Limits
    log_lines: int
    logs_truncated: bool
    tool_calls: int
    calls: list[CallRecord]
    """The first calls of tools that the run was given."""
    calls_left_out: int = 0
    """Number of calls that are counted in `tool_calls` and are not in `calls`."""
    requests: list[Any] = []
    """Outgoing requests: hosts and sizes, never contents."""

    @classmethod
    def of(cls, execution: Execution, run: RunHandle, result: Result) -> RunRecord:
        error = result.error
        return cls(
            run_id=run.id,
            protocol=execution.protocol,
            owner=execution.owner,
            engine=execution.profile.engine,
            label=execution.label,
            started_at=format_rfc3339(datetime.fromtimestamp(run.started_at, UTC)),
            duration_ms=result.duration_ms,
            outcome=run.outcome,
            line=error.line if error else None,
            reason=error.message if error and run.lost_runner else None,
            limits=execution.limits,
            log_lines=len(result.logs),
            logs_truncated=result.logs_truncated,
            tool_calls=run.call_count,
            calls=run.calls,
            calls_left_out=run.call_count - len(run.calls),
            requests=list(run.requests),
        )


RunSink = Callable[[RunRecord], None]
"""Stores a record."""


class RunRecorder:
    """Counts each run at its end, logs its record and passes it to the store."""

    def __init__(
        self, counters: RunCounters | None = None, find_sink: Callable[[], RunSink | None] = lambda: None
    ) -> None:
        """`find_sink` returns None while records are not stored."""
        self._counters = counters
        self._find_sink = find_sink
        self.on_end: list[Callable[[RunHandle], None]] = []
        """Called with each run at its end."""

    def __call__(self, execution: Execution, run: RunHandle, result: Result) -> None:
        if self._counters is not None:
            self._counters.count(execution, run, result)
        for listener in self.on_end:
            listener(run)
        sink = None if execution.is_internal else self._find_sink()
        level = _level(execution)
        is_logged = logger.isEnabledFor(level)
        if not is_logged and sink is None:
            return
        record = RunRecord.of(execution, run, result)
        if is_logged:
            calls = f"{record.tool_calls} tool call{'' if record.tool_calls == 1 else 's'}"
            logger.log(
                level,
                "run %s: %s after %.3g ms (%s, %s)",
                record.run_id,
                record.outcome,
                record.duration_ms,
                record.engine,
                calls,
                extra={"event": "run", "fields": record_fields(record)},
            )
        if sink is not None:
            sink(record)


def _level(execution: Execution) -> int:
    return logging.DEBUG if execution.is_internal else logging.INFO


def record_fields(record: RunRecord) -> dict[str, Any]:
    """Returns the fields of a record, without limits that have their default value."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    # Omit `engine` from the limits: it is only for external runners, and the record has its own field.
    defaults = {**_DEFAULT_LIMITS, "engine": fields["limits"]["engine"]}
    fields["limits"] = {name: value for name, value in fields["limits"].items() if value != defaults[name]}
    return fields
