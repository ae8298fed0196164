"""Lets the tool calls of a run begin only after the run was stored together with these calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hutch.errors import ToolError

if TYPE_CHECKING:
    from hutch.session.run import RunHandle


class CallGate:
    """Gate before each tool call of one run. The first call that reaches it suspends the run. When the run is
    stored, all waiting calls begin. If the process dies later, the store has the state in which the guest
    waits for them.
    """

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._passed: asyncio.Future[None] | None = None
        self._is_open = False

    async def __call__(self, is_idempotent: bool) -> None:
        """Waits until the call may begin. Raises ToolError if the run could not be stored."""
        if self._is_open:
            # The call was accepted before the run was stored, so the stored state has it.
            return
        if self._passed is None:
            self._passed = asyncio.get_running_loop().create_future()
        passed, session = self._passed, self._run.session
        assert session is not None
        session.suspend(self.fail)
        await asyncio.shield(passed)

    def open(self) -> None:
        """Lets the waiting calls begin, because the run was stored with them."""
        self._is_open = True
        passed, self._passed = self._passed, None
        if passed is not None:
            passed.set_result(None)

    def fail(self, reason: str) -> None:
        """Fails the waiting calls, because the run could not be stored."""
        passed, self._passed = self._passed, None
        if passed is not None:
            error = ToolError(f"The call was not made, because the run could not be stored before: {reason}")
            passed.set_exception(error)
            # Retrieved here, because all waiting calls may have been cancelled.
            passed.exception()

    def close(self) -> None:
        """Lets the next calls wait, because the guest continues."""
        self._is_open = False
