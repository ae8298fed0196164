"""A real OTLP/HTTP receiver, which decodes the spans that it gets."""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.support.network.threaded_http import QuietHandler, ThreadedHttpServer
from tests.support.processes import wait_until

KINDS = {1: "internal", 2: "server", 3: "client"}


class ReceivedSpan(NamedTuple):
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    seconds: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_error: bool
    message: str


class OtlpReceiver(ThreadedHttpServer):
    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.spans += _decode(body)
                self.send_response(200)
                self.end_headers()

        super().__init__(Handler)

    def trace(self, trace_id: str, count: int) -> dict[str, ReceivedSpan]:
        """Waits until a trace has at least `count` spans, and returns the spans by name."""
        wait_until(lambda: len(self._of(trace_id)) >= count)
        return {span.name: span for span in self._of(trace_id)}

    def _of(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


def _decode(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            KINDS[span.kind],
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            _attributes(span.attributes),
            _attributes(group.resource.attributes),
            span.status.code == 2,
            span.status.message,
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
