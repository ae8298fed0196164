"""`hutch serve`: serves all protocols on one port. After SIGTERM, running executions finish first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import uvicorn
import uvloop

from hutch import logs
from hutch.app.app import App
from hutch.cli.support import event_loop
from hutch.cli.support.console import print_line, print_note
from hutch.cli.support.project import (
    files_in_current_folder,
    load_project_settings_with_sources,
    project_servers,
)
from hutch.cli.support.signals import ShutdownSignals
from hutch.egress import policy
from hutch.errors import HutchError
from hutch.http.auth import AccessControl, is_loopback
from hutch.http.server.connections import ConnectionLimits
from hutch.http.server.uvicorn_protocols import BoundedHttpProtocol, QuietWebSocketProtocol
from hutch.settings import FILE, Settings

logger = logging.getLogger("hutch.serve")

# Maximum number of open files of the process, unless the hard limit is lower.
MAX_FILES = 65_536

_EXAMPLE_BODY = (
    '{"packageName": "@tpmjs/tools-template-render", "version": "0.1.0", "name": "templateRenderTool",'
    ' "params": {"template": "Hello {{name}}!", "data": {"name": "Bo"}}}'
)


class UvicornServer(uvicorn.Server):
    """uvicorn server without uvicorn's signal handling, which would end the process before the clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(flags: Mapping[str, object], *, gateway_only: bool = False, project: Path | None = None) -> int:
    """Runs the server. Returns 0 if everything that was running could finish.

    Uses the trusted files of the folder `project`, if given, and no files of the current directory.
    """
    settings, sources = load_project_settings_with_sources(flags, project)
    policy.check_settings(settings)
    logs.configure(settings)
    max_files = _raise_file_limit()
    with _listen(settings) as listener:
        return uvloop.run(_serve(settings, sources, listener, gateway_only, max_files, project))


def _raise_file_limit() -> int:
    """Raises the soft limit on open files, which is often 1024. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, min(hard, MAX_FILES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def _listen(settings: Settings) -> socket.socket:
    """Opens the port before anything else, so that starting a second server by mistake changes nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except (OSError, TypeError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "it is not the name of a host"
        raise HutchError(
            f"Cannot listen on {settings.host}:{settings.port}: {reason}.",
            remedy="Choose another address with --host, or port with --port; --port 0 takes a free one.",
        ) from None
    return listener


async def _serve(
    settings: Settings,
    sources: Mapping[str, str],
    listener: socket.socket,
    gateway_only: bool,
    max_files: int,
    project: Path | None,
) -> int:
    signals = ShutdownSignals()
    app = await App.create(settings, project_servers=project_servers(settings, project))
    try:
        access = AccessControl(settings, app.storage)
        if not gateway_only:
            await app.storage.start()
        web = app.gateway_http_app(access) if gateway_only else app.http_app(access, sources)
        if not gateway_only:
            await app.join_cluster()
            if settings.cluster_url is None or settings.cluster_local:
                await app.warm_up()
        # Start-up does not wait for MCP servers, only requests for their tools do.
        app.start_gateway()
        limits = ConnectionLimits(
            # Connections may use half of the open files. The other half is for runners, files and outgoing
            # connections.
            min(settings.max_connections, max_files // 2),
            settings.max_connections_per_address,
        )
        config = uvicorn.Config(
            web,
            log_config=None,
            access_log=False,
            server_header=False,
            http=partial(BoundedHttpProtocol, limits=limits),  # type: ignore[arg-type]
            ws=QuietWebSocketProtocol,
            ws_max_size=settings.max_line_bytes,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
        server = UvicornServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if not gateway_only and app.storage.stores_runs:
            app.flows.start()
            await app.queue.start()
            await app.continue_suspended_runs()
        _announce(settings, app, access, listener, gateway_only, project)
        gc.collect()
        event_loop.end_startup()
        # Shorten the switch interval. While another thread computes, the event loop waits for the GIL for up
        # to one interval, several times in each request. While large flows were validated, `/health` took 37
        # ms with Python's default of 5 ms, and 24 ms with 0.5 ms (medians of 10 runs, 2 cores).
        sys.setswitchinterval(0.0005)
        await _wait_for_first(serving, asyncio.create_task(signals.first.wait()))
        finished = await _drain(access, app, signals, settings.drain_seconds)
        server.should_exit = True
        server.force_exit = not finished
        if not finished:
            # The clients that are still connected do not read their responses, so do not wait for them.
            for connection in server.server_state.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await serving
        if not finished:
            _note("stopped before everything had finished")
        return 0 if finished else 1
    finally:
        await app.close()


async def _drain(access: AccessControl, app: App, signals: ShutdownSignals, seconds: float) -> bool:
    _note("draining; send the signal again to stop at once")
    draining = asyncio.create_task(_drain_all(access, app, seconds))
    await _wait_for_first(draining, asyncio.create_task(signals.second.wait()))
    return draining.done() and not draining.cancelled() and draining.result()


def _note(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print_note(text)


async def _drain_all(access: AccessControl, app: App, seconds: float) -> bool:
    # The result of `app.drain` does not count, because the next server resumes unfinished flows.
    finished, _ = await asyncio.gather(access.drain(seconds), app.drain(seconds))
    return finished


async def _wait_for_first(task: asyncio.Task[object], other: asyncio.Task[object]) -> None:
    """Waits until one of the tasks is done, then cancels `other`."""
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    other.cancel()


def _announce(
    settings: Settings,
    app: App,
    access: AccessControl,
    listener: socket.socket,
    gateway_only: bool,
    project: Path | None,
) -> None:
    host, port = listener.getsockname()[:2]
    url_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    isolation = app.verdict.isolation
    weak = "" if isolation == "container" else "  (weak: see `hutch doctor`)"
    key = "   (API key required)" if settings.api_key else ""
    url = f"http://{url_host}:{port}"
    servers = len(app.mcp_servers.servers())
    if gateway_only:
        print_line(f"Hutch gateway: {servers} MCP servers at {url}{key}")
        print_line(f"  Try:      curl {url}/status")
    else:
        link = f"#/sign-in/{access.browsers.create_link(settings.api_key)}" if settings.api_key else ""
        print_line(f"Hutch serves {url}   isolation: {isolation}{weak}{key}")
        print_line(f"  Console:    {url}/{link}")
        print_line(f"  Code:       {url}/run")
        print_line(f"  Execbox:    ws://{url_host}:{port}/execbox")
        print_line(f"  TPMJS:      {url}/execute-tool")
        from hutch.mcp_client.example_server import ExampleServers

        examples = isinstance(app.mcp_servers, ExampleServers)
        sources = "example tools" if examples else f"{servers} MCP servers"
        print_line(f"  Gateway:    {url}/tools   ({sources})")
        print_line(f"  Abilities:  {url}/abilities/ID/execute   (with a user's key: `hutch key add`)")
        print_line(f"  Flows:      {url}/flows")
        print_line(f"  MCP:        {url}/mcp")
        print_line(f"  Try:        {_example(settings, url)}")
    if not is_loopback(host) and settings.api_key is None:
        print_note("everyone who can reach this address can run code here; set HUTCH_API_KEY")
    for file in () if project is not None else files_in_current_folder(settings):
        # Name these files, because earlier versions read them and an operator may still rely on them.
        remedy = f"move it to {settings.home_path}" if file.name == FILE else f"--config {file.name} uses it"
        print_note(f"{file} is not used: servers read no files of the current directory; {remedy}")
    logger.info("serving", extra={"fields": {"host": host, "port": port, "isolation": isolation}})


def _example(settings: Settings, url: str) -> str:
    """Returns a shell command with which the user can test the server."""
    if settings.offline:
        return f"curl {url}/health"
    name = "HUTCH_API_KEY" if os.environ.get("HUTCH_API_KEY") else "EXECUTOR_API_KEY"
    key = f' -H "Authorization: Bearer ${name}"' if settings.api_key else ""
    return f"curl {url}/execute-tool -H 'Content-Type: application/json'{key} -d '{_EXAMPLE_BODY}'"
