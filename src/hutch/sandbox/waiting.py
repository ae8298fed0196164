"""Those who wait for a place, and when to try again if there is none."""

from __future__ import annotations

import asyncio

import msgspec

from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner


class Waiter(msgspec.Struct, eq=False):
    """An execution that waits for a place."""

    profile: Profile
    owner: str
    future: asyncio.Future[Runner]

    def given(self) -> Runner | None:
        """The runner that it got, if it got one."""
        done = self.future.done() and not self.future.cancelled() and not self.future.exception()
        return self.future.result() if done else None


def wait_guess(waiting: int) -> float:
    """Seconds after which trying again is sensible: the longer the queue, the later."""
    return float(min(30, 1 + waiting // 20))
