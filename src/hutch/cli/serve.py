"""`hutch serve`: all doors on one port, until SIGTERM, which drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping

import uvicorn
import uvloop

from hutch import logs
from hutch import settings as settings_module
from hutch.app import App
from hutch.doors.bounded import BoundedHttp
from hutch.doors.gate import Gate, is_loopback
from hutch.doors.refusing import RefusingWebSockets
from hutch.egress import policy
from hutch.errors import HutchError
from hutch.settings import Settings

logger = logging.getLogger("hutch.serve")

_CALL = (
    '{"packageName": "@tpmjs/tools-template-render", "version": "0.1.0", "name": "templateRenderTool",'
    ' "params": {"template": "Hello {{name}}!", "data": {"name": "Bo"}}}'
)


class Server(uvicorn.Server):
    """uvicorn, with the signals left to us: its own way ends the process by the signal, uncleaned."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Signals:
    """SIGTERM, SIGINT and SIGHUP: the first asks for an end, the second for one at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(each, self._came)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def serve(flags: Mapping[str, object], *, gateway_alone: bool = False) -> int:
    """The command's exit code: 0 when all that ran had the time to finish."""
    settings = settings_module.load(flags)
    policy.check(settings)
    logs.configure(settings)
    with _listen(settings) as listener:
        return uvloop.run(_serve(settings, listener, gateway_alone))


def _listen(settings: Settings) -> socket.socket:
    """Takes the port before anything else is done, so that a second server leaves no trace."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise HutchError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}.",
            remedy="Choose another address with --host, or port with --port; --port 0 takes a free one.",
        ) from None
    return listener


async def _serve(settings: Settings, listener: socket.socket, gateway_alone: bool) -> int:
    signals = Signals()
    app = await App.create(settings)
    connecting: list[asyncio.Task[None]] = []
    try:
        gate = Gate(settings, app.keeping)
        if not gateway_alone:
            await app.keeping.start()
        web = app.gateway_web(gate) if gateway_alone else app.web(gate)
        if not gateway_alone:
            await app.warm_up()
        # Those who ask for a tool wait for its server; nobody else does.
        connecting.append(asyncio.create_task(app.upstreams.start(eager=settings.mcp_eager)))
        config = uvicorn.Config(
            web,
            log_config=None,
            access_log=False,
            server_header=False,
            http=BoundedHttp,
            ws=RefusingWebSockets,
            ws_max_size=settings.max_line_bytes,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
        server = Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if not gateway_alone and app.keeping.keeps_runs:
            app.flows.start()
        _announce(settings, app, listener, gateway_alone)
        _settle_in()
        await _first_of(serving, asyncio.create_task(signals.first.wait()))
        finished = await _drain(gate, app, signals, settings.drain_seconds)
        server.should_exit = True
        server.force_exit = not finished
        if not finished:
            # Whoever is still connected does not read: nothing more can be said to it.
            for connection in server.server_state.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await serving
        if not finished:
            print("hutch: stopped before everything had finished", file=sys.stderr)
        return 0 if finished else 1
    finally:
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await app.close()


def _settle_in() -> None:
    """What is there by now stays to the end: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


async def _drain(gate: Gate, app: App, signals: Signals, seconds: float) -> bool:
    print("hutch: draining; send the signal again to stop at once", file=sys.stderr, flush=True)
    draining = asyncio.create_task(_finished(gate, app, seconds))
    await _first_of(draining, asyncio.create_task(signals.second.wait()))
    return draining.done() and not draining.cancelled() and draining.result()


async def _finished(gate: Gate, app: App, seconds: float) -> bool:
    """Flows that did not finish are no loss: the next server goes on with them."""
    finished, _ = await asyncio.gather(gate.drain(seconds), app.drain(seconds))
    return finished


async def _first_of(wanted: asyncio.Task[object], other: asyncio.Task[object]) -> None:
    """Waits for either, and ends the other one unless it is `wanted`."""
    await asyncio.wait({wanted, other}, return_when=asyncio.FIRST_COMPLETED)
    other.cancel()


def _announce(settings: Settings, app: App, listener: socket.socket, gateway_alone: bool) -> None:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    isolation = app.verdict.isolation
    weak = "" if isolation == "container" else "  (weak: see `hutch doctor`)"
    key = "   (API key required)" if settings.api_key else ""
    url = f"http://{shown}:{port}"
    servers = len(app.upstreams.servers())
    if gateway_alone:
        print(f"Hutch's gateway serves {servers} MCP servers at {url}{key}")
        print(f"  Try:      curl {url}/status", flush=True)
    else:
        print(f"Hutch serves {url}   isolation: {isolation}{weak}{key}")
        print(f"  Execbox:    ws://{shown}:{port}/execbox")
        print(f"  TPMJS:      {url}/execute-tool")
        print(f"  Gateway:    {url}/tools   ({servers} MCP servers)")
        print(f"  Abilities:  {url}/abilities/ID/execute   (with a user's key: `hutch key add`)")
        print(f"  Flows:      {url}/flows")
        print(f"  MCP:        {url}/mcp")
        print(f"  Try:        {_example(settings, url)}", flush=True)
    if not is_loopback(host) and settings.api_key is None:
        print("hutch: whoever reaches this address can run code here; set HUTCH_API_KEY", file=sys.stderr)
    logger.info("serving", extra={"fields": {"host": host, "port": port, "isolation": isolation}})


def _example(settings: Settings, url: str) -> str:
    """A line for a shell that shows that all of it works."""
    if settings.offline:
        return f"curl {url}/health"
    name = "HUTCH_API_KEY" if os.environ.get("HUTCH_API_KEY") else "EXECUTOR_API_KEY"
    key = f' -H "Authorization: Bearer ${name}"' if settings.api_key else ""
    return f"curl {url}/execute-tool -H 'Content-Type: application/json'{key} -d '{_CALL}'"
