"""Lets the tool calls of a run begin only after the run was stored together with these calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hutch.errors import ToolError

if TYPE_CHECKING:
    from hutch.session.run import RunHandle


class CallHold:
    """Holds the tool calls of one run until the run is stored. The first call suspends the run. When the run
    is stored, all held calls begin. If the process dies later, the store has the state in which the guest
    waits for these calls.
    """

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._released: asyncio.Future[None] | None = None
        self._is_released = False

    async def __call__(self, is_idempotent: bool) -> None:
        """Waits until the call may begin. Raises ToolError if the run could not be stored."""
        if self._is_released:
            # The run is stored already. It was stored after this call was accepted, so the stored state
            # contains the call.
            return
        if self._released is None:
            self._released = asyncio.get_running_loop().create_future()
        released, session = self._released, self._run.session
        assert session is not None
        session.suspend(self.fail)
        await asyncio.shield(released)

    def release(self) -> None:
        """Lets the held calls begin, because the run was stored with them."""
        self._is_released = True
        released, self._released = self._released, None
        if released is not None:
            released.set_result(None)

    def fail(self, reason: str) -> None:
        """Fails the held calls, because the run could not be stored."""
        released, self._released = self._released, None
        if released is not None:
            error = ToolError(f"The call was not made, because the run could not be stored before: {reason}")
            released.set_exception(error)
            # Read the exception. If all held calls were cancelled, nothing else reads it, and asyncio would
            # log an error.
            released.exception()

    def hold(self) -> None:
        """Holds the next calls, because the guest continues."""
        self._is_released = False
