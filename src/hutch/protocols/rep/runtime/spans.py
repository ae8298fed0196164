"""Spans of flow runs, of their steps and of the requests of steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.telemetry.trace_context import TraceContext, current, parse_context, use_context
from hutch.telemetry.tracer import Span, Tracer

if TYPE_CHECKING:
    from hutch.egress.client.models import RequestLogEntry
    from hutch.protocols.rep.runtime.context import RunContext
    from hutch.protocols.rep.runtime.models import RunSummary


class FlowOutcome:
    """Outcome of a flow run. It is set before the span of the run ends."""

    summary: RunSummary | None = None


class StepOutcome:
    """Outcome of an attempt at a step. It is set before the span of the attempt ends."""

    failed = True


@contextmanager
def flow_span(name: str, context: RunContext, options: Mapping[str, Any]) -> Iterator[FlowOutcome]:
    """Creates the span of a flow run. Its parent is the span in the option `traceparent` of
    `Runtime.StartRun`.
    """
    outcome = FlowOutcome()
    tracer = context.tracer
    if tracer is None:
        yield outcome
        return
    with use_context(parse_context(options.get)):
        trace = tracer.begin(f"flow {name}")
    started, result = time.time(), "internal_error"
    try:
        with use_context(trace):
            yield outcome
    except asyncio.CancelledError:
        result = "cancelled"
        raise
    finally:
        summary = outcome.summary
        result = result if summary is None else summary.outcome
        error = None if result == "ok" else result
        span = Span(
            name=f"flow {name}",
            context=trace,
            start=started,
            end=time.time(),
            attributes={
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": name,
                "hutch.run.id": context.run_id,
                "hutch.protocol": "rep",
                "hutch.owner": context.owner,
                "hutch.outcome": result,
                "hutch.flow.completed_steps": None if summary is None else summary.completed_steps,
                "hutch.flow.failed_steps": None if summary is None else summary.failed_steps,
                "error.type": error,
            },
            error=error,
        )
        tracer.export([span])
        _flush(tracer)


def _flush(tracer: Tracer) -> None:
    """Exports the spans without delay, because the process may end as soon as the orchestrator knows the
    outcome.
    """
    task = asyncio.get_running_loop().create_task(tracer.flush())
    _flushing.add(task)
    task.add_done_callback(_flushing.discard)


_flushing: set[asyncio.Task[None]] = set()


@contextmanager
def step_span(
    flow: TraceContext | None, context: RunContext, step_id: str, kind: str, attempt: int
) -> Iterator[StepOutcome]:
    """Creates the span of one attempt at a step. Its parent is the span of the flow. Its children are the
    spans of the step's runs, calls and requests.
    """
    outcome = StepOutcome()
    tracer = context.tracer
    if tracer is None or flow is None:
        yield outcome
        return
    trace, started = flow.child(), time.time()
    try:
        with use_context(trace):
            yield outcome
    finally:
        span = Span(
            name=f"step {kind}",
            context=trace,
            start=started,
            end=time.time(),
            attributes={
                "hutch.run.id": context.run_id,
                "hutch.step.id": step_id,
                "hutch.step.kind": kind,
                "hutch.step.attempt": attempt,
                "error.type": "step_failed" if outcome.failed else None,
            },
            error="step_failed" if outcome.failed else None,
        )
        tracer.export([span])


def export_requests(tracer: Tracer | None, requests: Sequence[RequestLogEntry]) -> None:
    """Exports a span for each request of a step."""
    trace = current.get()
    if tracer is None or trace is None:
        return
    from hutch.kernel.spans import request_span

    now = time.time() - time.monotonic()
    tracer.export(
        request_span(msgspec.to_builtins(request), trace, now + request.started) for request in requests
    )
