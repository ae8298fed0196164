"""`hutch mcp`: Hutch as an MCP server on stdin and stdout, for the client that starts it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping

import uvloop

from hutch import logs
from hutch import settings as settings_module
from hutch.app import App
from hutch.doors.mcp.loading import load
from hutch.settings import Settings


def mcp(flags: Mapping[str, object]) -> int:
    """The command's exit code. Its stdout is the client's: all that is to be read by people is on stderr."""
    settings = settings_module.load(flags)
    logs.configure(settings)
    return uvloop.run(serve(settings))


async def serve(settings: Settings) -> int:
    """Until the client goes, or a signal comes."""
    ended = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    loading = asyncio.create_task(load())
    app = await App.create(settings)
    try:
        # Read now: a configuration that cannot be read is to be told before any client waits for us.
        connecting = asyncio.create_task(app.upstreams.start(eager=settings.mcp_eager))
        serving = asyncio.create_task(_serve(app, loading))
        signalled = asyncio.create_task(ended.wait())
        await asyncio.wait((serving, signalled), return_when=asyncio.FIRST_COMPLETED)
        for task in (connecting, serving, signalled):
            task.cancel()
        await asyncio.gather(connecting, signalled, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        return 0
    finally:
        await app.close()


async def _serve(app: App, loading: asyncio.Task[None]) -> None:
    await loading
    from hutch.doors.mcp import stdio
    from hutch.doors.mcp.server import Door

    door = Door(app, pass_through=app.settings.mcp_pass_through)
    try:
        await stdio.serve(door)
    finally:
        door.close()
