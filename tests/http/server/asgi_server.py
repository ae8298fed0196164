"""Serves an ASGI application on a real port, for tests that need a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from hutch.http.server.connections import ConnectionLimits
from hutch.http.server.uvicorn_protocols import BoundedHttpProtocol, QuietWebSocketProtocol


@contextlib.asynccontextmanager
async def serve_app(app: ASGIApp, go: asyncio.Event, **options: Any) -> AsyncIterator[str]:
    """Serves an application with uvicorn. Yields host and port. At the end, sets `go`, so that handlers that
    wait for `go` finish.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", **options
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            go.set()
            server.should_exit = server.force_exit = True
            await serving


@contextlib.asynccontextmanager
async def serve_bounded(app: ASGIApp, limits: ConnectionLimits | None = None) -> AsyncIterator[int]:
    """Serves an application with the protocol classes of `hutch serve`. Yields the port."""
    limits = limits or ConnectionLimits(100, 100)
    config = uvicorn.Config(app, ws=QuietWebSocketProtocol, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config=config, server_state=state, app_state={}, limits=limits),
        "127.0.0.1",
        0,
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
