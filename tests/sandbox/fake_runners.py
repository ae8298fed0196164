"""Pool with fake runners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from tests.support.network.memory_channel import MemoryChannel

from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.session.host import Session
from hutch.session.multiplexer import Multiplexer
from hutch.session.run import Result
from hutch.settings import Settings


class FakeRunner(Runner):
    """A runner without a process."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.idle_since = asyncio.get_running_loop().time()
        self.has_imported = True
        self.memory = 0
        self._multiplexer = Multiplexer(MemoryChannel.pair()[0])

    @property
    def multiplexer(self) -> Multiplexer:
        return self._multiplexer

    @property
    def is_alive(self) -> bool:
        return not self.has_exited

    def execution_started(self, session: Session) -> None:
        self.executions += 1

    def execution_ended(self, result: Result, session: Session) -> Result:
        return result

    def is_used_up(self, result: Result | None) -> bool:
        return self.profile.engine_spec.own_process

    def kill(self) -> None:
        if not self.has_exited:
            self._mark_exited()
            asyncio.get_running_loop().call_soon(self.on_exit, self)

    def memory_used(self) -> int:
        return self.memory


class PoolHarness:
    """A pool that launches fake runners and records the launches."""

    def __init__(self, **settings: object) -> None:
        self.launched: list[FakeRunner] = []
        self.background_starts: list[bool] = []
        """For each launched runner, whether it started with a lower priority."""
        self.failures: list[Exception] = []
        self.before_return: Callable[[], object] = lambda: None
        self.launch_allowed = asyncio.Event()
        self.launch_allowed.set()
        defaults: dict[str, object] = {
            "max_processes": 4,
            # By default, one owner may have all processes. Tests of shares set another limit.
            "max_processes_per_owner": 1_000,
            "quickjs_processes": 1,
            "queue_seconds": 20.0,
        }
        self.pool = Pool(msgspec.convert(defaults | settings, Settings), self._launch)

    async def _launch(self, profile: Profile, *, in_background: bool = False) -> Runner:
        await self.launch_allowed.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.launched.append(FakeRunner(profile))
        self.launched[-1].is_in_background = in_background
        self.background_starts.append(in_background)
        self.before_return()
        return self.launched[-1]

    @property
    def alive_count(self) -> int:
        return sum(runner.is_alive for runner in self.launched)


async def settle() -> None:
    """Lets all due callbacks run."""
    for _ in range(20):
        await asyncio.sleep(0)
