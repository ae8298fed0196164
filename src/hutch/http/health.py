"""Routes `/health` and `/metrics`."""

from __future__ import annotations

import time
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from hutch._version import __version__
from hutch.http.auth import AccessControl
from hutch.http.routing import PrefixRoute
from hutch.kernel.metrics import RunCounters, exposition
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.text import now_rfc3339

# TPMJS protocol version. TPMJS clients read it from /health.
PROTOCOL_VERSION = "1.0"


class GatewayHealth(Protocol):
    def health(self) -> dict[str, Any]: ...


class MonitoredServer(Protocol):
    """Server with the components that these routes report on."""

    pool: Pool
    verdict: SelfTestResult
    counters: RunCounters

    @property
    def gateway(self) -> GatewayHealth: ...

    def record_state(self) -> dict[str, Any] | None:
        """Returns whether run records can be written, and how many wait. None if they are not stored."""


def routes(server: MonitoredServer, access: AccessControl) -> list[BaseRoute]:
    started = time.monotonic()

    async def health(request: Request) -> Response:
        body = {
            **server.gateway.health(),
            "status": "draining" if access.is_draining else "ok",
            "protocolVersion": PROTOCOL_VERSION,
            "implementationVersion": __version__,
            "runtime": "deno",
            "isolation": server.verdict.isolation,
            **({} if (records := server.record_state()) is None else {"records": records}),
            "uptimeSeconds": round(time.monotonic() - started, 3),
            "timestamp": now_rfc3339(),
        }
        status = 503 if access.is_draining else 200
        return access.deny(request, public=True) or JSONResponse(body, status_code=status)

    async def metrics(request: Request) -> Response:
        return access.deny(request) or Response(
            exposition(server.counters, server.pool), media_type="text/plain; version=0.0.4"
        )

    return [PrefixRoute("/health", health), Route("/metrics", metrics)]
