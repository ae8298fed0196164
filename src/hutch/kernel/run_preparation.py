"""Connects a planned run, such as a queued one, with the handle that a protocol creates for it."""

from __future__ import annotations

from typing import Protocol

from hutch.session.run import RunHandle


class RunPreparation(Protocol):
    """Prepares the handle of a planned run. If a request starts several runs, the protocol uses the
    preparation only for the main run.
    """

    def adopt(self, run: RunHandle) -> None:
        """Gives the handle the id and the times of the planned run. A run that ends before it reaches the
        kernel needs no `begin`.
        """

    async def begin(self, run: RunHandle) -> None:
        """Adopts the run, directly before the kernel gets it. Raises HutchError if the run must not begin."""
