"""Routes `/health`, `/ready` and `/metrics`."""

from __future__ import annotations

import time
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from hutch._version import __version__
from hutch.http.auth import AccessControl
from hutch.http.routing import PrefixRoute
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.text import now_rfc3339

# TPMJS protocol version. TPMJS clients read it from /health.
PROTOCOL_VERSION = "1.0"

_PUBLIC_REASONS = {"store": "the database does not answer", "sandbox": "no execution can start"}


class GatewayHealth(Protocol):
    def health(self) -> dict[str, Any]: ...
    def connecting(self) -> list[str]: ...


class MonitoredServer(Protocol):
    """Server with the components that these routes report on."""

    verdict: SelfTestResult

    @property
    def gateway(self) -> GatewayHealth: ...

    def record_state(self) -> dict[str, Any] | None:
        """Returns the state of the queue of run records: whether it can be written, and how many records are
        waiting. Returns None if the server stores no records.
        """

    async def metrics(self, *, is_ready: bool) -> bytes:
        """Returns all metrics in the Prometheus text format."""

    async def problems(self) -> dict[str, str]:
        """Returns the components that do not work normally, with the reasons."""


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

    async def ready(request: Request) -> Response:
        if (refusal := access.deny(request, public=True)) is not None:
            return refusal
        problems, names = await server.problems(), server.gateway.connecting()
        connecting: list[str] | int = names
        if access.deny(request) is not None:
            # Replace the reasons by general ones, because they may name hosts and paths.
            problems = {name: _PUBLIC_REASONS[name] for name in problems}
            connecting = len(names)
        if access.is_draining:
            problems["server"] = "it is shutting down"
        is_ready = not problems and not names
        body = {"ready": is_ready, "connecting": connecting, "problems": problems}
        return JSONResponse(body, status_code=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        if (refusal := access.deny(request)) is not None:
            return refusal
        problems, connecting = await server.problems(), server.gateway.connecting()
        body = await server.metrics(is_ready=not (problems or connecting or access.is_draining))
        return Response(body, media_type="text/plain; version=0.0.4")

    return [PrefixRoute("/health", health), PrefixRoute("/ready", ready), Route("/metrics", metrics)]
