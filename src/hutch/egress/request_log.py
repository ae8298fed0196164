"""Entries of the outgoing requests of a run."""

from __future__ import annotations

import time

import msgspec


class OutgoingRequest(msgspec.Struct, kw_only=True):
    """One request or tunnel. It contains the destination and sizes, but never content."""

    method: str
    host: str
    path: str = ""
    """Path with secrets redacted, and without the query. Empty if it is not known, as in a tunnel."""
    started: float = msgspec.field(default_factory=time.monotonic)
    """Start on the monotonic clock, in seconds."""
    status: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    ms: float = 0.0
    """Time until the response body was read or abandoned, or the tunnel was closed."""
    error: str | None = None
    span_id: str | None = None
    """Id of the request's span if the run is traced."""
