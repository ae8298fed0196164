"""HTTP session for the OTLP exporter that limits how much of a response is read.

This module imports `requests`. Import it only if traces are exported.
"""

from __future__ import annotations

import io
import os
from typing import Any

import requests

MAX_RESPONSE_BYTES = 64 * 1024
# If one of these variables is set, the exporter must use the HTTP session of the credential provider that the
# variable names.
_OTHER_SESSION = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)


class BoundedSession(requests.Session):
    """Reads the first MAX_RESPONSE_BYTES of each response, without decompressing them."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        response = super().send(request, **{**options, "stream": True})
        # Read one byte more, so that the connection is reused after a response of exactly this size.
        body = response.raw.read(MAX_RESPONSE_BYTES + 1, decode_content=False)
        if len(body) > MAX_RESPONSE_BYTES:
            response.close()
        response.raw = io.BytesIO(body[:MAX_RESPONSE_BYTES])
        return response


def bounded_session() -> BoundedSession | None:
    """Returns a session that limits responses, or None if the operator has chosen another session."""
    return None if any(os.environ.get(name) for name in _OTHER_SESSION) else BoundedSession()
