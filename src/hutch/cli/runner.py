"""`hutch runner`: an Execbox runner for any other host to drive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from hutch import settings as settings_module
from hutch.app import App
from hutch.cli import loop
from hutch.doors.execbox.serve import serve
from hutch.sandbox.profile import profile_for
from hutch.session.descriptors import DescriptorChannel

# After stdin's end: how long what runs may take to finish, and what was said to be written.
FINISH_SECONDS = 0.5
WRITE_SECONDS = 0.2


def run(engine: str) -> int:
    """The command's exit code: 0 when stdin ended."""
    profile = profile_for(engine)
    settings = settings_module.load({"quickjs_warm": 1, "deno_warm": 1})

    async def main() -> str:
        app = await App.create(settings)
        try:
            app.pool.warm(profile, 1)
            # What is on stdin may be all there is: have it run without a wait.
            await app.pool.warmed(profile)
            channel = DescriptorChannel(*_take_stdio(), settings.max_line_bytes)
            return await _serve(channel, app, engine)
        finally:
            await app.close()

    reason = loop.run(main())
    if reason != "the input ended":
        print(f"hutch: {reason}", file=sys.stderr)
        return 1
    return 0


async def _serve(channel: DescriptorChannel, app: App, engine: str) -> str:
    """Serves until the other side has gone, and says how."""
    serving = serve(channel, app.kernel, owner="runner", engine=engine, multiplexed=False)
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    channel.on_close = gone.set_result
    channel.open()
    reason = await gone
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FINISH_SECONDS):
            await serving.idle()
    await serving.stop()
    channel.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WRITE_SECONDS):
            await channel.finished()
    return reason


def _take_stdio() -> tuple[int, int]:
    """What were stdin and stdout. Whatever else reads gets nothing; whatever else prints goes to stderr."""
    read, write = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return read, write
