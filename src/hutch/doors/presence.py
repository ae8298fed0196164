"""Work for a client, for as long as that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.doors.marks import SHUTTING_DOWN
from hutch.errors import Busy

if TYPE_CHECKING:
    from starlette.types import Receive

    from hutch.doors.gate import Gate

T = TypeVar("T")


async def while_there(receive: Receive, work: Coroutine[Any, Any, T], gate: Gate | None = None) -> T:
    """Works to the end, unless the client goes (ClientDisconnect) or the server's time is up (Busy).

    `receive` is that of a request whose body has been read.
    """
    if gate is not None and gate.time_is_up.is_set():
        work.close()
        raise _too_late()
    ending = _Ending()
    gone = asyncio.create_task(_gone(receive))
    gone.add_done_callback(ending.client_went)
    if gate is not None:
        gate.at_the_end.add(ending.time_is_up)
    try:
        return await work
    except asyncio.CancelledError:
        if ending.reason is None or not ending.take_back():
            raise
        raise ending.reason from None
    finally:
        ending.take_back()
        gone.cancel()
        if gate is not None:
            gate.at_the_end.discard(ending.time_is_up)


class _Ending:
    """Ends the task that made it, for one reason."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment] # it runs in one
        self.reason: Exception | None = None
        self._cancellations = self.task.cancelling()
        self._is_over = False

    def take_back(self) -> bool:
        """From now on the task is not ended, and is as if it never was. Whether nobody else ends it."""
        if not self._is_over:
            self._is_over = True
            if self.reason is not None:
                self.task.uncancel()
        return self.task.cancelling() <= self._cancellations

    def client_went(self, gone: asyncio.Task[None]) -> None:
        from starlette.requests import ClientDisconnect

        if not gone.cancelled():
            self._end(gone.exception() or ClientDisconnect())  # type: ignore[arg-type]

    def time_is_up(self) -> None:
        self._end(_too_late())

    def _end(self, reason: Exception) -> None:
        if self.reason is None and not self._is_over:
            self.reason = reason
            self.task.cancel()


def _too_late() -> Busy:
    return Busy(f"{SHUTTING_DOWN}.")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
