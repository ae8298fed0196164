"""Connects a planned run, such as a queued one, with the handle that a protocol creates for it."""

from __future__ import annotations

from typing import Protocol

from hutch.session.run import RunHandle


class RunPreparation(Protocol):
    """Prepares the handle of a planned run. A protocol that gets one calls it for its main run only."""

    def adopt(self, run: RunHandle) -> None:
        """Gives the run its id and its times. Enough for a run that ends before it reaches the kernel."""

    async def begin(self, run: RunHandle) -> None:
        """Adopts the run, directly before the kernel gets it. Raises HutchError if it must not begin."""
