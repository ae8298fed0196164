"""`/health` and `/metrics`: whether it lives, and how it does."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from hutch._version import __version__
from hutch.doors.gate import Gate
from hutch.doors.paths import Lane
from hutch.metrics import RunCounters, exposition
from hutch.sandbox.pool import Pool
from hutch.sandbox.selftest import Verdict

# Of TPMJS, whose clients look for it here.
PROTOCOL_VERSION = "1.0"


class Gateway(Protocol):
    """What has something to say of itself."""

    def health(self) -> dict[str, Any]: ...


class Server(Protocol):
    """What these routes look at."""

    pool: Pool
    verdict: Verdict
    counters: RunCounters

    @property
    def gateway(self) -> Gateway: ...


def routes(server: Server, gate: Gate) -> list[BaseRoute]:
    began = time.monotonic()

    async def health(request: Request) -> Response:
        body = {
            **server.gateway.health(),
            "status": "draining" if gate.draining else "ok",
            "protocolVersion": PROTOCOL_VERSION,
            "implementationVersion": __version__,
            "runtime": "deno",
            "isolation": server.verdict.isolation,
            "uptimeSeconds": round(time.monotonic() - began, 3),
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        status = 503 if gate.draining else 200
        return gate.refuse(request, public=True) or JSONResponse(body, status_code=status)

    async def metrics(request: Request) -> Response:
        return gate.refuse(request) or Response(
            exposition(server.counters, server.pool), media_type="text/plain; version=0.0.4"
        )

    return [Lane("/health", health), Route("/metrics", metrics)]
