"""A door on a real port, for what only a connection can show."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, go: asyncio.Event, **options: Any) -> AsyncIterator[str]:
    """Its host and port. At the end `go` is set, so that nothing behind the door waits any longer."""
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
