"""Cancels the work for a request when its client disconnects or the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.errors import Busy
from hutch.http.errors import SHUTTING_DOWN

if TYPE_CHECKING:
    from starlette.types import Receive

    from hutch.http.auth import AccessControl

T = TypeVar("T")


async def cancel_on_disconnect(
    receive: Receive | None, work: Coroutine[Any, Any, T], access: AccessControl | None = None
) -> T:
    """Awaits `work`. Raises ClientDisconnect if the client disconnects, Busy if the drain timeout expires.

    `receive` belongs to a request whose body has been read. `receive` is None if the caller detects the
    disconnect itself.
    """
    if access is not None and access.drain_expired.is_set():
        work.close()
        raise _shutting_down()
    cancellation = _Cancellation()
    disconnect = None if receive is None else asyncio.create_task(_wait_for_disconnect(receive))
    if disconnect is not None:
        disconnect.add_done_callback(cancellation.on_disconnect)
    if access is not None:
        access.on_drain_expired.add(cancellation.on_drain_expired)
    try:
        return await work
    except asyncio.CancelledError:
        if cancellation.reason is None or not cancellation.revert():
            raise
        raise cancellation.reason from None
    finally:
        cancellation.revert()
        if disconnect is not None:
            disconnect.cancel()
        if access is not None:
            access.on_drain_expired.discard(cancellation.on_drain_expired)


class _Cancellation:
    """Cancels the task that created this object, and stores the reason."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment] # is in a task
        self.reason: Exception | None = None
        self._cancellations = self.task.cancelling()
        self._is_reverted = False

    def revert(self) -> bool:
        """Reverts the cancellation of the task, and prevents another one by this object. Returns False if
        something else has cancelled the task, too.
        """
        if not self._is_reverted:
            self._is_reverted = True
            if self.reason is not None:
                self.task.uncancel()
        return self.task.cancelling() <= self._cancellations

    def on_disconnect(self, disconnect: asyncio.Task[None]) -> None:
        from starlette.requests import ClientDisconnect

        if not disconnect.cancelled():
            self._cancel(disconnect.exception() or ClientDisconnect())  # type: ignore[arg-type]

    def on_drain_expired(self) -> None:
        self._cancel(_shutting_down())

    def _cancel(self, reason: Exception) -> None:
        if self.reason is None and not self._is_reverted:
            self.reason = reason
            self.task.cancel()


def _shutting_down() -> Busy:
    return Busy(f"{SHUTTING_DOWN}.")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
