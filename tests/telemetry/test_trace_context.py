"""Parsing and propagation of the W3C trace context."""

from __future__ import annotations

import pytest

from hutch.telemetry.trace_context import MAX_STATE_CHARS, TraceContext, parse_context
from hutch.telemetry.tracer import is_configured

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE_ID}-{SPAN_ID}-01"


def parse(traceparent: object, tracestate: object = None) -> TraceContext | None:
    return parse_context({"traceparent": traceparent, "tracestate": tracestate}.get)


def test_valid_context_is_continued_by_a_child_of_the_same_trace() -> None:
    context = parse(VALID, "vendor=1")
    assert context == TraceContext(TRACE_ID, SPAN_ID, True, "vendor=1")
    child = context.child()
    assert (child.trace_id, child.parent_id) == (TRACE_ID, SPAN_ID)
    assert child.headers == {
        "traceparent": f"00-{TRACE_ID}-{child.span_id}-01",
        "tracestate": "vendor=1",
    }


def test_flags_say_whether_the_trace_is_sampled() -> None:
    context = parse(VALID[:-2] + "00")
    assert context is not None
    assert context.child().traceparent.endswith("-00")


def test_later_version_may_have_more_fields() -> None:
    context = parse(f"cc-{TRACE_ID}-{SPAN_ID}-01-what-is-new")
    assert context is not None
    assert context.traceparent == VALID


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        7,
        "",
        VALID.upper(),
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{VALID}-more",
        f"{VALID}x",
        f"{VALID}\n",
        VALID[1:],
        "x" * 100_000,
    ],
)
def test_invalid_context_is_ignored(traceparent: object) -> None:
    assert parse(traceparent) is None


@pytest.mark.parametrize("state", [7, "a=1\r\nHost: x", "ä=1", "a=" + "x" * MAX_STATE_CHARS])
def test_invalid_state_is_not_passed_on(state: object) -> None:
    context = parse(VALID, state)
    assert context is not None
    assert context.headers == {"traceparent": VALID}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_standard_variables_switch_traces_on(environ: dict[str, str], expected: bool) -> None:
    assert is_configured(environ) is expected
