"""Exports spans through OpenTelemetry. This is the only module that imports OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from hutch._version import __version__
from hutch.telemetry.trace_context import TraceContext, calling_span, new_span_id
from hutch.text import cut

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanContext

logger = logging.getLogger("hutch.telemetry")

AttributeValue: TypeAlias = str | int | float | bool

MAX_ATTRIBUTE_CHARS = 500
MAX_NAME_CHARS = 120
CLOSE_SECONDS = 2.0
"""Time that a process waits at its end for spans to be exported."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span."""

    name: str
    context: TraceContext
    start: float
    """Unix time in seconds."""
    end: float
    kind: Literal["internal", "server", "client"] = "internal"
    attributes: Mapping[str, AttributeValue | None] = {}
    """Attributes with the value None are left out."""
    error: str | None = None
    """Description of the error, which may be empty; None if there was none."""


class ExportCounters(msgspec.Struct):
    """Numbers of spans since the start of the process."""

    exported: int = 0
    failed: int = 0


def is_configured(environ: Mapping[str, str]) -> bool:
    """Returns True if the standard variables ask for traces through OTLP."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "otlp"):
        return False
    return exporter == "otlp" or any(environ.get(name, "").strip() for name in _ENDPOINTS)


async def open_tracer() -> Tracer | None:
    """Returns a tracer if the environment asks for traces. An unusable configuration is only logged, because
    it may be meant for other programs.
    """
    if not is_configured(os.environ):
        return None
    # Open the tracer in a thread, because the import takes a quarter of a second.
    return await asyncio.to_thread(_open)


def configuration_problem(environ: Mapping[str, str]) -> str | None:
    """Returns the reason why traces that the environment asks for cannot be exported, and the remedy, or
    None.
    """
    for name in _PROTOCOLS:
        if protocol := environ.get(name):
            if protocol != _PROTOCOL:
                return f"{name}: expected {_PROTOCOL}, got {protocol}. Use the OTLP/HTTP port, often 4318."
            break
    from importlib.util import find_spec

    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        return "OpenTelemetry's exporter is not installed. Install it with: pip install 'hutch[otel]'"
    return None


def _open() -> Tracer | None:
    problem = configuration_problem(os.environ)
    try:
        if problem is None:
            return Tracer()
    except (ImportError, TypeError, ValueError) as error:
        problem = f"OpenTelemetry cannot be used: {error}. Look at the OTEL_ variables."
    logger.warning("no traces: %s", problem)
    return None


class Tracer:
    """Decides which traces are sampled, and exports spans in a separate thread. Export never blocks the
    caller: spans are dropped while the queue is full.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        """Reads the standard variables. Raises ImportError if OpenTelemetry is not installed."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from hutch.telemetry.otlp_session import bounded_session

        resource = Resource.create()
        if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") and not os.environ.get(
            "OTEL_SERVICE_NAME"
        ):
            resource = resource.merge(Resource({"service.name": "hutch", "service.version": __version__}))
        # The provider is used only to read the sampler from the environment. Spans are not created by the
        # provider, because their ids are needed before their contents are known.
        self._sampler = TracerProvider(shutdown_on_exit=False, resource=resource).sampler
        self._resource = resource
        self._scope = InstrumentationScope("hutch", __version__)
        self.counters = ExportCounters()
        self._exporter = _observed(exporter or OTLPSpanExporter(session=bounded_session()), self.counters)
        self._processor = BatchSpanProcessor(self._exporter)

    def begin(self, name: str) -> TraceContext:
        """Returns the context of a new span below the current span, or of a new trace. The configured sampler
        decides whether the span is exported.
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace.sampling import Decision

        parent = calling_span()
        around = None
        if parent is not None:
            around = trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent)))
        trace_id = os.urandom(16).hex() if parent is None else parent.trace_id
        sampled = self._sampler.should_sample(around, int(trace_id, 16), name, trace.SpanKind.INTERNAL)
        return TraceContext(
            trace_id,
            new_span_id(),
            sampled.decision is Decision.RECORD_AND_SAMPLE,
            "" if parent is None else parent.state,
            None if parent is None else parent.span_id,
        )

    def export(self, spans: Iterable[Span]) -> None:
        for span in spans:
            if span.context.is_sampled:
                self._processor.on_end(self._readable(span))

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind, Status, StatusCode

        context = span.context
        parent = None
        if context.parent_id is not None:
            parent = _span_context(msgspec.structs.replace(context, span_id=context.parent_id))
        status = Status()
        if span.error is not None:
            status = Status(StatusCode.ERROR, _text(span.error, MAX_ATTRIBUTE_CHARS) or None)
        return ReadableSpan(
            name=_text(span.name, MAX_NAME_CHARS),
            context=_span_context(context),
            parent=parent,
            resource=self._resource,
            attributes={
                name: _text(value, MAX_ATTRIBUTE_CHARS) if isinstance(value, str) else value
                for name, value in span.attributes.items()
                if value is not None
            },
            kind=SpanKind[span.kind.upper()],
            status=status,
            start_time=int(span.start * 1e9),
            end_time=int(max(span.start, span.end) * 1e9),
            instrumentation_scope=self._scope,
        )

    async def flush(self) -> None:
        """Exports all spans now, for at most CLOSE_SECONDS."""
        await _wait_for_thread(self._processor.force_flush)

    async def close(self) -> None:
        """Exports the remaining spans, for at most CLOSE_SECONDS."""
        if not await _wait_for_thread(self._processor.shutdown):
            # Stop the exporter, which may still be retrying.
            self._exporter.shutdown()


def _text(text: str, max_chars: int) -> str:
    # A lone surrogate in one span would make the encoding of its whole batch fail.
    return cut(text, max_chars).encode(errors="replace").decode()


async def _wait_for_thread(work: Callable[[], object]) -> bool:
    """Runs `work` in a thread that does not keep the process from ending. Returns False if the work took
    longer than CLOSE_SECONDS.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        # Ignore RuntimeError, which means that the loop is already closed. Then nothing waits for the work.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True, name="hutch-telemetry").start()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await done.wait()
    return done.is_set()


def _observed(exporter: SpanExporter, counters: ExportCounters) -> SpanExporter:
    """Returns an exporter that counts spans, and logs when the export begins to fail and when it works
    again.
    """
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class ObservedExporter(SpanExporter):
        _is_failing = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            try:
                result = exporter.export(spans)
            except Exception as error:
                logger.debug("spans could not be exported", exc_info=error)
                result = SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS:
                counters.exported += len(spans)
                if self._is_failing:
                    logger.warning("spans can be exported again")
            else:
                counters.failed += len(spans)
                if not self._is_failing:
                    logger.warning("spans cannot be exported for now: the OTLP endpoint does not accept them")
            self._is_failing = result is not SpanExportResult.SUCCESS
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return ObservedExporter()


@contextmanager
def opentelemetry_context(context: TraceContext) -> Iterator[None]:
    """Makes a span the current span for libraries that use OpenTelemetry's API."""
    from opentelemetry import context as api
    from opentelemetry import trace

    token = api.attach(trace.set_span_in_context(trace.NonRecordingSpan(_span_context(context))))
    try:
        yield
    finally:
        api.detach(token)


def _span_context(context: TraceContext) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.is_sampled),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )
