"""`hutch runner`: an Execbox runner over stdio, which any host can use."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from hutch.app.app import App
from hutch.cli.support import event_loop
from hutch.cli.support.console import print_note
from hutch.protocols.execbox.serve import serve
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.descriptors import DescriptorChannel
from hutch.session.runner import PendingBytes
from hutch.settings import load_settings
from hutch.streams.stdio import take_stdio

# After the end of stdin, executions have FINISH_SECONDS to finish. Then their output has WRITE_SECONDS to be
# written.
FINISH_SECONDS = 0.5
WRITE_SECONDS = 0.2


def run(engine: str) -> int:
    """Serves until stdin ends. Returns 0, or 1 if the connection failed earlier."""
    profile = profile_for(engine)
    if sys.stdin.isatty():
        print_note(
            "`hutch runner` runs code for another program, and waits for its Execbox messages on stdin, one "
            "line of JSON each. To run code yourself, use `hutch eval`. Press Ctrl-D or Ctrl-C to stop it."
        )
    settings = load_settings({"quickjs_warm": 1, "deno_warm": 1})

    async def main() -> str:
        app = await App.create(settings)
        try:
            app.pool.keep_warm(profile, 1)
            # Wait for a ready runner before reading. If stdin is a file, it ends soon, and its executions
            # must start before that.
            await app.pool.wait_warm(profile)
            event_loop.end_startup()
            channel = DescriptorChannel(*take_stdio(), settings.max_line_bytes)
            return await _serve(channel, app, engine)
        finally:
            await app.close()

    reason = event_loop.run_async(main())
    if reason != "the input ended":
        print_note(reason)
        return 1
    return 0


async def _serve(channel: DescriptorChannel, app: App, engine: str) -> str:
    """Serves until the channel closes. Returns the reason why it closed."""
    pending = PendingBytes(app.settings.max_pending_bytes)
    serving = serve(channel, app.kernel, owner="runner", engine=engine, multiplexed=False, pending=pending)
    closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    channel.on_close = closed.set_result
    channel.open()
    reason = await closed
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FINISH_SECONDS):
            await serving.wait_idle()
    await serving.stop()
    channel.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WRITE_SECONDS):
            await channel.finished()
    return reason
