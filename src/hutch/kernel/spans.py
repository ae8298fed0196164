"""Makes the spans of a trace from the record of a run, so that records, logs and traces agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.telemetry.trace_context import TraceContext
from hutch.telemetry.tracer import AttributeValue, Span, Tracer

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution
    from hutch.kernel.records import RunRecord
    from hutch.session.run import CallRecord, RunHandle

# Protocols in which Hutch is the server. Their runs get spans of the kind SERVER.
_SERVED_PROTOCOLS = frozenset({"execbox", "tpmjs", "mcp", "abilities"})
# Protocols in which a run is the execution of one tool for an agent.
_TOOL_PROTOCOLS = frozenset({"tpmjs", "mcp", "abilities"})

GROUP_NAME = "batch"

Attributes = dict[str, AttributeValue | None]


class RunTracing:
    """Gives each run the context of a span at its start, and exports its spans at its end."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, execution: Execution, run: RunHandle) -> None:
        if not execution.is_internal:
            name = GROUP_NAME if execution.is_group else f"run {execution.profile.engine}"
            run.trace = self._tracer.begin(name)

    def end(self, record: RunRecord, run: RunHandle, *, is_group: bool) -> None:
        """Exports the spans of a run whose trace is sampled. `record` has no content."""
        if run.trace is not None:
            spans = group_spans if is_group else run_spans
            self._tracer.export(spans(record, run, run.trace))


def run_spans(record: RunRecord, run: RunHandle, trace: TraceContext) -> Iterator[Span]:
    """Yields the span of a run, and the spans of its queue time, installation, waits, tool calls and
    requests. The spans contain only names, sizes, codes and, if recorded, the error message.
    """
    created, clock = run.started_at, run.clock
    ended = created + (clock.ended or 0.0)
    leased = ended if clock.leased is None else created + clock.leased
    started = ended if clock.started is None else created + clock.started
    installing = created - record.install_ms / 1000
    yield _run_span(record, run, trace, installing, ended)
    if record.install_ms:
        yield Span(name="install", context=trace.child(), start=installing, end=created)
    yield Span(name="queue", context=trace.child(), start=created, end=leased)
    for wait in record.waits:
        start = started + wait.start_ms / 1000
        end = start + wait.duration_ms / 1000
        attributes: Attributes = {"hutch.wait.subject": wait.subject}
        yield Span(
            name=f"wait {wait.kind}", context=trace.child(), start=start, end=end, attributes=attributes
        )
    for call in record.calls:
        if call.span_id is not None and call.start_ms is not None:
            yield _call_span(call, trace, started)
    for request in record.requests:
        yield request_span(request, trace, started + request["start_ms"] / 1000)


def group_spans(record: RunRecord, run: RunHandle, trace: TraceContext) -> Iterator[Span]:
    """Yields the span of a batch. The calls of the batch are runs with their own spans."""
    ended = run.started_at + (run.clock.ended or 0.0)
    span = _run_span(record, run, trace, run.started_at, ended)
    yield msgspec.structs.replace(span, name=GROUP_NAME)


def _run_span(record: RunRecord, run: RunHandle, trace: TraceContext, start: float, end: float) -> Span:
    label = None if record.label is None else run.redacted(record.label)
    is_ok = record.outcome == "ok"
    attributes: Attributes = {
        "hutch.run.id": record.run_id,
        "hutch.run.parent_id": record.parent_run_id,
        "hutch.protocol": record.protocol,
        "hutch.engine": record.engine,
        "hutch.owner": record.owner,
        "hutch.label": label,
        "hutch.outcome": record.outcome,
        "hutch.limit": record.limit,
        "hutch.tool_calls": record.tool_calls,
        "hutch.log_lines": record.log_lines,
        "hutch.retries": record.retries or None,
        "code.line.number": record.line,
        "error.type": None if is_ok else record.outcome,
    }
    name = f"run {record.engine}"
    if record.protocol in _TOOL_PROTOCOLS and label is not None:
        tool = label.rpartition("#")[2]
        name = f"execute_tool {tool}"
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
    return Span(
        name=name,
        context=trace,
        start=start,
        end=end,
        kind="server" if record.protocol in _SERVED_PROTOCOLS else "internal",
        attributes=attributes,
        error=None if is_ok else record.error_message or record.outcome,
    )


def _call_span(call: CallRecord, trace: TraceContext, started: float) -> Span:
    """Returns the span of a tool call, with the attributes of the semantic conventions for generative AI."""
    assert call.span_id is not None
    assert call.start_ms is not None
    start = started + call.start_ms / 1000
    return Span(
        name=f"execute_tool {call.tool}",
        context=msgspec.structs.replace(trace, span_id=call.span_id, parent_id=trace.span_id),
        start=start,
        end=start + call.duration_ms / 1000,
        attributes={
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "hutch.provider": call.provider,
            "code.line.number": call.line,
            "error.type": None if call.ok else call.code or "tool_error",
        },
        error=None if call.ok else call.code or "tool_error",
    )


def _split_port(host: str) -> tuple[str, str]:
    """Splits `host:port`. The port is empty if there is none, also for IPv6 addresses such as `[::1]`."""
    name, _, port = host.rpartition(":")
    has_port = name.endswith("]") or (name and ":" not in name)
    return (name, port) if has_port and port.isdecimal() else (host, "")


def request_span(request: Mapping[str, Any], parent: TraceContext, start: float) -> Span:
    """Returns the span of an outgoing request of a record, with the attributes of the semantic conventions
    for HTTP.
    """
    host, port = _split_port(request["host"])
    status, error = request["status"], request["error"]
    if error is None and status is not None and status >= 400:
        error = str(status)
    context = parent.child()
    if request.get("span_id") is not None:
        context = msgspec.structs.replace(context, span_id=request["span_id"])
    return Span(
        name=request["method"],
        context=context,
        start=start,
        end=start + request["ms"] / 1000,
        kind="client",
        attributes={
            "http.request.method": request["method"],
            "http.request.size": request["sent_bytes"],
            "http.response.size": request["received_bytes"],
            "http.response.status_code": status,
            "server.address": host,
            "server.port": int(port) if port else None,
            "url.path": request["path"] or None,
            "error.type": error,
        },
        error=error,
    )
