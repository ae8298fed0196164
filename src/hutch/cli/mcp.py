"""`hutch mcp`: an MCP server over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping

import uvloop

from hutch import logs
from hutch.app.app import App
from hutch.cli.support import event_loop
from hutch.cli.support.console import print_note
from hutch.cli.support.project import current_folder, load_project_settings, project_servers
from hutch.errors import HutchError
from hutch.mcp_client.config import INSIDE_VARIABLE
from hutch.protocols.mcp.http import load_sdk
from hutch.settings import Settings


def mcp(flags: Mapping[str, object]) -> int:
    """Serves one client on stdin and stdout. Logs go to stderr."""
    if os.environ.get(INSIDE_VARIABLE):
        raise HutchError(
            "`hutch mcp` was started as an MCP server of Hutch, which would start itself again and again.",
            remedy=f"Remove its entry from the servers, or unset {INSIDE_VARIABLE} if you started it.",
        )
    if sys.stdin.isatty():
        print_note(
            "`hutch mcp` is an MCP server. It waits for the messages of an MCP client on stdin; an AI "
            "application starts it (see `hutch mcp --help`). Press Ctrl-C to stop it."
        )
    settings = load_project_settings(flags, current_folder())
    logs.configure(settings)
    return uvloop.run(serve(settings))


async def serve(settings: Settings) -> int:
    """Serves until the client closes stdin or a signal arrives."""
    ended = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signal_number, ended.set)
    loading = asyncio.create_task(load_sdk())
    app = await App.create(settings, project_servers=project_servers(settings, current_folder()))
    try:
        # Start the gateway now, so that an invalid configuration is reported before the client waits for a
        # response.
        app.start_gateway()
        if app.storage.can_store:
            app.store_approvals()
        serving = asyncio.create_task(_serve(app, loading))
        signalled = asyncio.create_task(ended.wait())
        await asyncio.wait((serving, signalled), return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, signalled):
            task.cancel()
        await asyncio.gather(signalled, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        return 0
    finally:
        await app.close()


async def _serve(app: App, loading: asyncio.Task[None]) -> None:
    await loading
    from hutch.protocols.mcp import stdio
    from hutch.protocols.mcp.server import HutchMcpServer

    server = HutchMcpServer(app, pass_through=app.settings.mcp_pass_through)
    event_loop.end_startup()
    try:
        await stdio.serve(server)
    finally:
        server.close()
