"""Records each run at its end: counts it, logs its record and passes the record to the store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch import logs
from hutch.kernel.content import RecordLevels, error_text, run_content
from hutch.kernel.execution import Execution
from hutch.session.events.timeline import RunTimeline
from hutch.session.limits import Limits
from hutch.session.run import CallRecord, Result, RunHandle, TextRedactor, Wait
from hutch.settings.model import RecordLevel
from hutch.tasks import SLICE_SECONDS, TimeSlices
from hutch.text import cut, format_unix_time

if TYPE_CHECKING:
    from hutch.kernel.metrics import RunCounters
    from hutch.kernel.spans import RunTracing
    from hutch.store.models import NewRun

logger = logging.getLogger("hutch.runs")

_DEFAULT_LIMITS = msgspec.to_builtins(Limits())
PUBLISH_SECONDS = 0.01
"""Time for which a run that has ended waits, so that the records of several runs are made one after the
other. That takes less CPU time, because the caches are warm, and the callers get their results first.
"""
MAX_LABEL_CHARS = 200
MAX_TARGETS = 50
"""Maximum number of tools, and of hosts, that are stored for each run. Lists of runs can be filtered by them.
"""
# Fields of a run record that have their own column. All other fields are stored in `details`.
_RUN_COLUMNS = (
    "run_id",
    "owner",
    "protocol",
    "engine",
    "label",
    "created_at",
    "duration_ms",
    "outcome",
    "parent_run_id",
)
# Names of the limits, by the error code of a run that reaches the limit.
_LIMITS_BY_CODE = {
    "timeout": "timeout_ms",
    "memory_limit": "memory_limit_bytes",
    "result_too_large": "max_result_bytes",
    "call_limit": "max_calls",
}


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of one run: owner, engine, times, outcome.

    Only `error_message` and `content` may contain code, inputs, results or messages of guests. They are
    stored encrypted and never logged.
    """

    run_id: str
    protocol: str
    owner: str
    engine: str
    label: str | None = None
    parent_run_id: str | None = None
    trace_id: str | None = None
    """Id of the run's trace; None if it is not traced."""
    span_id: str | None = None
    code_hash: str | None = None
    """SHA-256 of the guest's code. None for tools of npm packages, whose label names the package."""
    created_at: str
    started_at: str | None = None
    """Time at which the guest began to run; None if it never did."""
    ended_at: str
    queue_ms: float = 0.0
    """Time that the run waited for a runner."""
    install_ms: float = 0.0
    duration_ms: float
    outcome: str
    """`ok` or the error code."""
    line: int | None = None
    """Line of the guest code that failed."""
    limit: str | None = None
    """Name of the limit that ended the run."""
    reason: str | None = None
    """Reason for the loss of the runner; None if it was not lost."""
    limits: Limits
    retries: int = 0
    log_lines: int
    logs_truncated: bool
    tool_calls: int
    calls: list[CallRecord]
    """The first calls of tools that the run was given."""
    calls_left_out: int = 0
    """Number of calls that are counted in `tool_calls` and are not in `calls`."""
    requests: list[dict[str, Any]] = []
    """Outgoing requests: hosts and sizes, never contents."""
    waits: list[Wait] = []
    turn: int | None = None
    """Number of the turn, if the run was a turn of a stateful session."""
    recorded: RecordLevel = "metadata"
    error_message: str | None = None
    content: str | None = None
    """JSON text of a `RunContent`."""

    @classmethod
    def of(
        cls,
        execution: Execution,
        run: RunHandle,
        result: Result,
        *,
        with_hash: bool = True,
        recorded: RecordLevel = "metadata",
        error_message: str | None = None,
    ) -> RunRecord:
        """Returns the record without its content."""
        error = result.error
        clock = run.clock
        return cls(
            run_id=run.id,
            protocol=execution.protocol,
            owner=execution.owner,
            engine=execution.profile.engine,
            label=None if execution.label is None else cut(execution.label, MAX_LABEL_CHARS),
            parent_run_id=execution.parent_run_id,
            trace_id=None if run.trace is None else run.trace.trace_id,
            span_id=None if run.trace is None else run.trace.span_id,
            code_hash=code_hash(execution) if with_hash else None,
            created_at=format_unix_time(run.started_at),
            started_at=None if clock.started is None else format_unix_time(run.started_at + clock.started),
            ended_at=format_unix_time(run.started_at + (clock.ended or 0.0)),
            queue_ms=round((clock.leased or 0.0) * 1000, 3),
            install_ms=run.install_ms,
            duration_ms=result.duration_ms,
            outcome=run.outcome,
            line=error.line if error else None,
            limit=_LIMITS_BY_CODE.get(run.outcome),
            reason=error.message if error and run.lost_runner else None,
            limits=execution.limits,
            retries=run.retries,
            log_lines=max(len(result.logs), 0 if run.timeline is None else len(run.timeline.logs)),
            logs_truncated=result.logs_truncated,
            tool_calls=run.call_count,
            # Copy the list, because it belongs to the run.
            calls=[*run.calls],
            calls_left_out=run.call_count - len(run.calls),
            requests=[_request(request, run) for request in run.requests],
            waits=run.waits,
            turn=None if execution.turn is None else execution.turn.number,
            recorded=recorded,
            error_message=error_message,
        )

    @property
    def memory_bytes(self) -> int:
        """Estimate of the bytes that the record takes in memory."""
        texts = len(self.error_message or "") + len(self.content or "")
        return 1_000 + 300 * (len(self.calls) + len(self.requests) + len(self.waits)) + texts


def _request(request: Any, run: RunHandle) -> dict[str, Any]:
    """Returns the fields of an outgoing request, with its start in milliseconds after the guest began to run.
    Redacts host and method, because a guest may have put a secret into them.
    """
    fields: dict[str, Any] = msgspec.to_builtins(request)
    if fields["span_id"] is None:
        del fields["span_id"]
    clock = run.clock
    started = fields.pop("started") - clock.created
    if not fields["ms"] and clock.ended is not None:
        # The connection was still open when the run ended, so the request lasts until then.
        fields["ms"] = round(max(0.0, clock.ended - started) * 1000, 3)
    fields["host"], fields["method"] = run.redacted(fields["host"]), run.redacted(fields["method"])
    return {**fields, "start_ms": round((started - (clock.started or 0.0)) * 1000, 3)}


RunSink = Callable[[RunRecord, TextRedactor | None], None]
"""Stores a record. The redactor removes the run's secrets from the content of the record."""


class _EndedRun(NamedTuple):
    context: contextvars.Context
    """Context variables of the run's task, which filters of log records may read."""
    execution: Execution
    run: RunHandle
    result: Result
    level: RecordLevel


class RunRecorder:
    """Counts each run at its end. A moment later, logs its record and passes it to the store."""

    def __init__(
        self,
        counters: RunCounters | None = None,
        levels: RecordLevels | None = None,
    ) -> None:
        self.sink: RunSink | None = None
        """None while records are not stored."""
        self._counters = counters
        self._levels = levels or RecordLevels()
        self.tracing: RunTracing | None = None
        """Exports a trace of each run. None if traces are not configured."""
        self.owner_name: Callable[[str], str | None] = lambda owner: None
        """Returns the name of an owner, if known."""
        self.on_end: list[Callable[[RunHandle], None]] = []
        """Called with each run at its end."""
        self._ended: deque[_EndedRun] = deque()
        """Runs whose records are not made yet."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, execution: Execution, run: RunHandle) -> None:
        """Collects the events of a run, for its record and for clients that follow it. At the end of the run,
        the level `errors` keeps only the last log lines of a failed run, and the level `metadata` keeps no
        events.
        """
        if self.sink is None or execution.is_internal:
            return
        level = self._levels.of(execution.protocol, run.record_level)
        run.timeline = RunTimeline(run.clock, self._levels.max_bytes // 2, keeps_values=level == "full")
        if run.recorded_before is not None and execution.saved is not None:
            run.timeline.continue_from(run.recorded_before, execution.saved.pending)
            run.recorded_before = None
        run.listeners.append(run.timeline)

    def __call__(self, execution: Execution, run: RunHandle, result: Result) -> None:
        if self._counters is not None and not execution.is_group:
            self._counters.count(execution, run, result)
        for listener in self.on_end:
            listener(run)
        if self.tracing is not None and run.trace is None and not execution.is_internal:
            # The run ended before it reached the kernel, because its package could not be installed. So it
            # has no span yet.
            self.tracing.begin(execution, run)
        is_wanted = not execution.is_internal and (self.sink is not None or self._is_traced(run))
        if is_wanted or logger.isEnabledFor(_log_level(execution)):
            # Choose the level here, because it depends on the API key of the current task.
            level = self._levels.of(execution.protocol, run.record_level)
            self._ended.append(_EndedRun(contextvars.copy_context(), execution, run, result, level))
            if self._timer is None:
                loop = asyncio.get_running_loop()
                # Without a store, nothing makes sure that the loop still runs after a while.
                self._timer = loop.call_later(
                    0 if self.sink is None else PUBLISH_SECONDS, self._publish_slice
                )

    async def publish(self) -> None:
        """Logs the records of the runs that have ended, stores them and exports their spans."""
        slices = TimeSlices()
        while self._ended:
            self._publish_next()
            await slices.pause()

    def _publish_slice(self) -> None:
        """Publishes runs for a few milliseconds. Other callbacks are called before the rest is published."""
        self._timer = None
        slice_end = perf_counter() + SLICE_SECONDS
        while self._ended:
            self._publish_next()
            if perf_counter() >= slice_end:
                self._timer = asyncio.get_running_loop().call_later(0, self._publish_slice)
                return

    def _publish_next(self) -> None:
        ended = self._ended.popleft()
        try:
            ended.context.run(self._publish, ended)
        except Exception:
            logger.exception("the record of the run %s cannot be made", ended.run.id)

    def _publish(self, ended: _EndedRun) -> None:
        _, execution, run, result, level = ended
        message = None if level == "metadata" else error_text(run, result)
        record = RunRecord.of(execution, run, result, recorded=level, error_message=message)
        log_level = _log_level(execution)
        if logger.isEnabledFor(log_level):
            self._log(record, log_level)
        if execution.is_internal:
            return
        if self.sink is not None:
            if level == "full" or (level == "errors" and run.outcome != "ok"):
                content = run_content(execution, run, result, level, self._levels.max_bytes)
                record = msgspec.structs.replace(record, content=content)
            self.sink(record, run.redactor)
        if self.tracing is not None and self._is_traced(run):
            self.tracing.end(record, run, is_group=execution.is_group)

    def _is_traced(self, run: RunHandle) -> bool:
        return self.tracing is not None and run.trace is not None and run.trace.is_sampled

    def _log(self, record: RunRecord, level: int) -> None:
        calls = f"{record.tool_calls} tool call{'' if record.tool_calls == 1 else 's'}"
        logger.log(
            level,
            "run %s: %s after %s ms (%s, %s)",
            record.run_id,
            record.outcome,
            _rounded(record.duration_ms),
            record.engine,
            calls,
            extra={
                "event": "run",
                "fields": record_fields(record),
                # Hutch shows these two attributes on a terminal and does not write them to log files. But the
                # formatter of a program that uses Hutch as a library may write all attributes of a log
                # record.
                "owner_name": self.owner_name(record.owner),
                **({"error_message": record.error_message} if logs.shows_error_messages() else {}),
            },
        )


def _log_level(execution: Execution) -> int:
    return logging.DEBUG if execution.is_internal else logging.INFO


def code_hash(execution: Execution) -> str | None:
    source = execution.source
    code = execution.code if source is None else source.code
    # Import the module only when it is needed, because it loads OpenSSL.
    import hashlib

    return None if code is None else hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def record_fields(record: RunRecord) -> dict[str, Any]:
    """Returns the fields of a record that may be logged, without limits that have their default value."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in ("error_message", "content", "recorded"):
        fields.pop(name, None)
    # Omit `engine` from the limits: only external runners read it there, and the record has its own field for
    # the engine.
    defaults = {**_DEFAULT_LIMITS, "engine": fields["limits"]["engine"]}
    fields["limits"] = {name: value for name, value in fields["limits"].items() if value != defaults[name]}
    return fields


def stored_record(record: RunRecord, redactor: TextRedactor | None = None) -> NewRun:
    """Converts a record to the format of the store. `redactor` redacts its content."""
    from hutch.store.models import NewRun, RunRow

    fields = record_fields(record)
    columns = {name: fields.pop(name, None) for name in _RUN_COLUMNS}
    row = RunRow(
        **columns,
        details=msgspec.json.encode(fields).decode(),
        recorded=record.recorded,
        error_message=record.error_message,
    )
    tools = dict.fromkeys(f"{call.provider}.{call.tool}" for call in record.calls)
    hosts = dict.fromkeys(request["host"] for request in record.requests)
    return NewRun(
        row,
        record.content,
        tuple(tools)[:MAX_TARGETS],
        tuple(hosts)[:MAX_TARGETS],
        None if redactor is None else redactor.long_text,
    )


def _rounded(milliseconds: float) -> str:
    """Rounds to three digits, or to whole milliseconds: `0.42`, `12.3`, `2390`."""
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
