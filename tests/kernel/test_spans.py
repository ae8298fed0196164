"""Conversion of run records to trace spans."""

from __future__ import annotations

import pytest

from hutch.kernel.spans import request_span
from hutch.telemetry.trace_context import TraceContext


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("api.example", "api.example", None),
        ("api.example:8443", "api.example", 8443),
        ("[::1]", "[::1]", None),
        ("[::1]:8443", "[::1]", 8443),
        ("::1", "::1", None),
    ],
)
def test_request_span_has_address_and_port_of_its_host(host: str, address: str, port: int | None) -> None:
    request = {
        "method": "GET",
        "host": host,
        "path": "/",
        "status": 200,
        "error": None,
        "ms": 1.0,
        "sent_bytes": 0,
        "received_bytes": 0,
    }
    attributes = request_span(request, TraceContext("1" * 32, "2" * 16), 0.0).attributes
    assert (attributes["server.address"], attributes["server.port"]) == (address, port)
