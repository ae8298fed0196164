"""The runtime once there is a run: an event loop, what runs steps, and the end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import NoReturn

from hutch.cli import loop, runtime_log
from hutch.cli.runtime_rooms import OwnRooms
from hutch.doors.rep import rpc
from hutch.doors.rep.journal import StoreJournals
from hutch.doors.rep.runtime import Runtime
from hutch.session.descriptors import DescriptorChannel

# After stdin's end: how long steps may take to let go, and what was said to be written.
END_SECONDS = 0.6
WRITE_SECONDS = 0.1
LAST_SECONDS = 0.85
_AT_THE_END = "the input ended"


def serve(read: int, write: int, lines: rpc.Lines, waiting: list[bytes]) -> NoReturn:
    """Ends the process. `waiting` has been read already, and is not answered yet."""
    code = loop.run(_serve(read, write, lines, waiting))
    # All is closed by now, and taking Python apart would take longer than a short run.
    sys.stderr.flush()
    os._exit(code)


async def _serve(read: int, write: int, lines: rpc.Lines, waiting: list[bytes]) -> int:
    rooms = OwnRooms()
    runtime_log.configure(os.environ, rooms.settings.log_level)
    journals = StoreJournals(lambda: rooms.settings)
    runtime = Runtime(rooms, journals=journals)
    channel = DescriptorChannel(read, write, lines)
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(line: bytes) -> None:
        if (answer := runtime.answer(line)) is not None:
            channel.send(answer)

    channel.on_line = hear
    channel.on_close = over.set_result
    try:
        for line in waiting:
            hear(line)
        channel.open()
        reason = await over
    finally:
        _end_for_certain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await runtime.close()
                await journals.close()
                await rooms.close()
        channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_SECONDS):
                await channel.finished()
    return 0 if reason == _AT_THE_END else 1


def _end_for_certain() -> None:
    """A step that does not let go keeps us no longer than this; guests die with us."""
    ending = threading.Timer(LAST_SECONDS, os._exit, (1,))
    ending.daemon = True
    ending.start()
