"""`hutch serve`: all doors on one port, until SIGTERM, which drains."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from hutch import logs
from hutch import settings as settings_module
from hutch.app import App
from hutch.doors.gate import Gate
from hutch.errors import HutchError
from hutch.settings import Settings


class Server(uvicorn.Server):
    """uvicorn, which on its first signal first lets the running executions finish."""

    def __init__(self, config: uvicorn.Config, gate: Gate, drain_seconds: float) -> None:
        super().__init__(config)
        self._gate = gate
        self._drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            super().handle_exit(sig, frame)
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain(sig, frame))

    async def _drain(self, sig: int, frame: FrameType | None) -> None:
        print("hutch: draining; send the signal again to stop at once", file=sys.stderr)
        await self._gate.drain(self._drain_seconds)
        super().handle_exit(sig, frame)


def serve(*, host: str | None, port: int | None) -> None:
    settings = settings_module.load({"host": host, "port": port})
    logs.configure(settings)
    listener = _listen(settings)
    uvloop.run(_serve(settings, listener))


def _listen(settings: Settings) -> socket.socket:
    """Takes the port before anything else is done, so that a second server leaves no trace."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise HutchError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}.",
            remedy="Choose another with --port, or --port 0 for a free one.",
        ) from None
    listener.listen(1024)
    return listener


async def _serve(settings: Settings, listener: socket.socket) -> None:
    app = App(settings)
    gate = Gate(settings)
    try:
        await app.warm_up()
        config = uvicorn.Config(
            app.web(gate),
            log_config=None,
            access_log=False,
            ws="websockets-sansio",
            ws_max_size=settings.max_line_bytes,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
        _announce(settings, app, listener)
        await Server(config, gate, settings.drain_seconds).serve(sockets=[listener])
    finally:
        await app.close()


def _announce(settings: Settings, app: App, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    weak = "" if app.verdict.isolation == "container" else "  (weak: see `hutch doctor`)"
    print(f"Hutch serves {url}   isolation: {app.verdict.isolation}{weak}")
    print(f"  Execbox WebSocket: ws://{shown}:{port}/execbox{'  (API key required)' if settings.api_key else ''}")
    print(f"  Try:  curl {url}/health", flush=True)
