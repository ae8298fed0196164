"""Work for a client, for as long as that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from hutch.doors.gate import SHUTTING_DOWN, Gate
from hutch.errors import Busy

T = TypeVar("T")


async def while_there(receive: Receive, work: Coroutine[Any, Any, T], gate: Gate | None = None) -> T:
    """Works to the end, unless the client goes (ClientDisconnect) or the server's time is up (Busy).

    `receive` is that of a request whose body has been read.
    """
    running = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    cut = asyncio.create_task((asyncio.Event() if gate is None else gate.time_is_up).wait())
    try:
        await asyncio.wait({running, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise Busy(f"{SHUTTING_DOWN}.") if cut.done() else ClientDisconnect()
    finally:
        for task in (running, gone, cut):
            task.cancel()
        await asyncio.gather(running, gone, cut, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
