"""A pool of runners that are played, without a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner
from hutch.session.channel import MemoryChannel
from hutch.session.host import Outcome, Session
from hutch.session.link import Link
from hutch.settings import Settings


class Played(Runner):
    """A runner without a process."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.idle_since = asyncio.get_running_loop().time()
        self.imported = True
        self.memory = 0
        self._link = Link(MemoryChannel.pair()[0])

    @property
    def link(self) -> Link:
        return self._link

    @property
    def alive(self) -> bool:
        return not self.exited

    def began(self, session: Session) -> None:
        self.executions += 1

    def ended(self, outcome: Outcome, session: Session) -> None: ...

    def spent(self, outcome: Outcome | None) -> bool:
        return self.profile.details.own_process

    def kill(self) -> None:
        if not self.exited:
            self._exited.set()
            asyncio.get_running_loop().call_soon(self.on_exit, self)

    def memory_used(self) -> int:
        return self.memory


class Stage:
    """A pool of played runners, and everything that was ever launched."""

    def __init__(self, **settings: object) -> None:
        self.launched: list[Played] = []
        self.failures: list[Exception] = []
        self.before_return: Callable[[], object] = lambda: None
        self.gate = asyncio.Event()
        self.gate.set()
        defaults: dict[str, object] = {"max_processes": 4, "quickjs_processes": 1, "queue_seconds": 20.0}
        self.pool = Pool(msgspec.convert(defaults | settings, Settings), self._launch)

    async def _launch(self, profile: Profile) -> Runner:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.launched.append(Played(profile))
        self.before_return()
        return self.launched[-1]

    @property
    def alive(self) -> int:
        return sum(each.alive for each in self.launched)


async def settle() -> None:
    """Lets everything happen that is due now."""
    for _ in range(20):
        await asyncio.sleep(0)
