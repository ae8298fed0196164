"""`hutch runner`: an Execbox runner for any other host to drive."""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop

from hutch import settings as settings_module
from hutch.app import App
from hutch.doors.execbox.serve import serve
from hutch.sandbox.profile import profile_for
from hutch.session.channel import StreamChannel


def run(engine: str) -> None:
    profile = profile_for(engine)

    async def main() -> None:
        app = App(settings_module.load())
        try:
            app.pool.warm(profile, 1)
            channel = StreamChannel(app.settings.max_line_bytes)
            serving = serve(channel, app.kernel, owner="runner", engine=engine, multiplexed=False)
            await _attach(channel)
            await serving.closed()
        finally:
            await app.close()

    uvloop.run(main())


async def _attach(channel: StreamChannel) -> None:
    """Speaks through what were stdin and stdout; whatever prints by accident goes to stderr."""
    loop = asyncio.get_running_loop()
    read, write = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    await loop.connect_write_pipe(lambda: channel, os.fdopen(write, "wb"))
    await loop.connect_read_pipe(lambda: channel, os.fdopen(read, "rb"))
