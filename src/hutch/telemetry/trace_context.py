"""W3C trace context: the ids that connect the spans of several processes to one trace.

Without OpenTelemetry, `current` is never set, so no trace context is sent to other programs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_STATE_CHARS = 512

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True):
    """Ids of a span and of its parent."""

    trace_id: str
    span_id: str
    is_sampled: bool = True
    state: str = ""
    """Value of the header `tracestate`, which is passed on unchanged."""
    parent_id: str | None = None

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers, or fields of MCP's `_meta`, that pass on the context."""
        state = {TRACESTATE: self.state} if self.state else {}
        return {TRACEPARENT: self.traceparent, **state}

    def child(self) -> TraceContext:
        """Returns the context of a new span whose parent is this span."""
        return TraceContext(self.trace_id, new_span_id(), self.is_sampled, self.state, self.span_id)


current: ContextVar[TraceContext | None] = ContextVar("hutch_trace_context", default=None)
"""Parent span of new spans and outgoing requests of the current task."""


@contextmanager
def use_context(context: TraceContext | None) -> Iterator[None]:
    token = current.set(context)
    try:
        yield
    finally:
        current.reset(token)


def calling_span() -> TraceContext | None:
    """Returns the current span. In a program that uses Hutch as a library, this may be a span that the
    program created with OpenTelemetry.
    """
    context = current.get()
    api = sys.modules.get("opentelemetry.trace")
    if context is not None or api is None:
        return context
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    state = span.trace_state.to_header()
    return TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}", span.trace_flags.sampled, state)


def new_span_id() -> str:
    return os.urandom(8).hex()


def parse_context(get: Callable[[str], object]) -> TraceContext | None:
    """Returns the trace context that a client or server sent, or None if it sent none or an invalid one.
    `get` returns the value of a header or field by its name.
    """
    text, state = get(TRACEPARENT), get(TRACESTATE)
    # Later versions may add fields at the end (W3C Trace Context, section 3.2.4).
    match = _TRACEPARENT.match(text) if isinstance(text, str) else None
    if match is None or not isinstance(text, str) or text[match.end() :][:1] not in ("", "-"):
        return None
    if text.startswith("00") and len(text) > match.end():
        return None
    is_state = isinstance(state, str) and len(state) <= MAX_STATE_CHARS and state.isascii()
    kept = state if isinstance(state, str) and is_state and state.isprintable() else ""
    return TraceContext(match[1], match[2], bool(int(match[3], 16) & _SAMPLED), kept)
