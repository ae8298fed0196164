"""Starts the runners of a pool: for waiting executions, and to keep some ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from hutch.errors import HutchError, SandboxUnavailable
from hutch.sandbox.pool.inventory import RunnerInventory
from hutch.sandbox.pool.queue import Waiter, WaitQueue
from hutch.sandbox.pool.shares import PoolShares
from hutch.sandbox.pool.spares import SparePolicy
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.settings import Settings, cores


class LaunchRunner(Protocol):
    def __call__(self, profile: Profile, *, in_background: bool = False) -> Awaitable[Runner]:
        """Starts a runner, with a lower CPU priority if `in_background`."""


# A shared process that was used within this time is not evicted while a single-use process may soon end by
# itself.
RECENT_USE_SECONDS = 0.1
MAX_START_ATTEMPTS = 3
# A start needs a core for most of its time. More concurrent starts would only delay each other and the
# running executions. A busy machine with 2 cores ran 17.9 deno executions per second with this limit, 13.5
# with half of this limit, and 17.1 without a limit.
MAX_CONCURRENT_STARTS = 4 * cores()


class RunnerStarter:
    def __init__(
        self,
        settings: Settings,
        launch: LaunchRunner,
        runners: RunnerInventory,
        waiters: WaitQueue,
        shares: PoolShares,
        *,
        on_ready: Callable[[Runner], None],
        on_failed: Callable[[], None],
        evict: Callable[[Runner], None],
        starts_in_background: Callable[[], bool],
    ) -> None:
        """`on_ready` gets each runner that has started. `on_failed` is called if a runner that should be kept
        warm did not start. `evict` ends a runner to free capacity for another. If `starts_in_background`
        returns True, a runner starts with a lower CPU priority.
        """
        self.spares = SparePolicy(settings)
        self.warm_targets: dict[Profile, int] = {}
        self.errors: dict[Profile, str] = {}
        """Reasons why runners that should be kept warm did not start. Their start is tried again."""
        self._settings = settings
        self._launch = launch
        self._runners = runners
        self._waiters = waiters
        self._shares = shares
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._evict = evict
        self._starts_in_background = starts_in_background
        self._reserved: set[Profile] = set()
        self._has_postponed_starts = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: Counter[Profile] = Counter()
        self._refill_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        if self._refill_timer is not None:
            self._refill_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep_warm(self, profile: Profile, count: int) -> None:
        """Keeps `count` unowned runners of this profile ready from now on."""
        self.warm_targets[profile] = count
        self.fill()

    def reserve(self, profile: Profile) -> None:
        """Starts one runner as soon as there is capacity. This start takes precedence over starts for waiting
        executions, but does not evict other runners.
        """
        self._reserved.add(profile)
        self.fill()

    async def wait_warm(self, profile: Profile) -> None:
        while not self._runners.warm.get(profile) and self._runners.starting[profile] > 0:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def warm_target(self, profile: Profile) -> int:
        return max(self.warm_targets.get(profile, 0), self.spares.target(profile))

    def is_kept_warm(self, profile: Profile) -> bool:
        """Returns True if the pool keeps unused runners of this profile ready that any owner can use."""
        return not profile.has_preload and self.warm_target(profile) > 0

    def has_capacity(self) -> bool:
        return self._runners.process_count() < self._settings.max_processes

    def fill(self) -> None:
        """Starts the runners that are needed, as far as there is capacity."""
        if self._is_closed:
            return
        for profile in [*self._reserved]:
            if self._runners.has_unused(profile):
                self._reserved.discard(profile)
            elif self.has_capacity():
                self._reserved.discard(profile)
                self.start(profile)
        for profile, count in self.wanted_counts().items():
            have = self._runners.starting[profile] + len(self._runners.warm.get(profile, ()))
            for _ in range(count - have):
                if self._runners.starting.total() >= MAX_CONCURRENT_STARTS:
                    self._has_postponed_starts = True
                    return
                if not self._make_capacity(profile):
                    return
                self.start(profile)

    def wanted_counts(self) -> Counter[Profile]:
        """Returns how many unused processes each profile needs: for waiters, and to reach the number of warm
        runners. Waiters whose owner has used up its share are not counted.
        """
        wanted: Counter[Profile] = Counter()
        for profile in self._planned_processes():
            wanted[profile] += 1
        for profile in {*self.warm_targets} | self.spares.profiles():
            # While owners wait, one more unused process is needed for newcomers; see
            # `Pool._kept_for_newcomers`.
            kept = 1 if wanted[profile] and self.is_kept_warm(profile) else 0
            wanted[profile] = max(wanted[profile] + kept, self.warm_target(profile))
        return wanted

    def _planned_processes(self) -> list[Profile]:
        """Returns the profiles of the processes that the next waiters need, at most `max_processes`."""
        shares, taken = self._shares, Counter[str]()
        shared: set[tuple[Profile, str]] = set()
        planned: list[Profile] = []

        def may_take(waiter: Waiter) -> bool:
            holder = shares.holder(waiter.profile, waiter.owner)
            if not shares.processes.may_take(holder, taken[holder], len(planned)):
                return False
            return (waiter.profile, holder) not in shared and shares.may_run(waiter.profile, waiter.owner)

        for waiter in self._waiters.in_order(may_take):
            holder = shares.holder(waiter.profile, waiter.owner)
            if not waiter.profile.engine_spec.own_process:
                # One shared process serves all executions of the holder, so plan it only once.
                shared.add((waiter.profile, holder))
            taken[holder] += 1
            planned.append(waiter.profile)
            if len(planned) == self._settings.max_processes:
                break
        return planned

    def _make_capacity(self, profile: Profile) -> bool:
        if self.has_capacity():
            return True
        if self._waiters and not self._runners.ending:
            victim = self._eviction_candidate(profile)
            if victim is not None and self._is_protected(victim, profile):
                self._refill_later()
            elif victim is not None:
                self._evict(victim)
        return False

    def _is_protected(self, victim: Runner, profile: Profile) -> bool:
        """Returns True if a recently used shared process is kept for a moment because a single-use process
        will end soon. The shared process may be precompiling code for single-use processes.
        """
        if not profile.engine_spec.own_process or not self._runners.busy:
            return False
        return asyncio.get_running_loop().time() - victim.idle_since < RECENT_USE_SECONDS

    def _refill_later(self) -> None:
        if self._refill_timer is None:
            self._refill_timer = asyncio.get_running_loop().call_later(RECENT_USE_SECONDS, self._refill)

    def _refill(self) -> None:
        self._refill_timer = None
        self.fill()

    def _eviction_candidate(self, profile: Profile) -> Runner | None:
        """Returns the process that has been idle longest and does not match `profile`."""
        idle = [runner for runner in self._runners.all_shared() if runner.in_flight == 0]
        idle += [
            runner for other, ready in self._runners.warm.items() if other != profile for runner in ready
        ]
        return min(idle, key=lambda runner: runner.idle_since, default=None)

    def start(self, profile: Profile) -> None:
        """Starts one runner if there is capacity."""
        if self._is_closed or not self.has_capacity():
            return
        self._runners.starting[profile] += 1
        task = asyncio.get_running_loop().create_task(
            self._launch_runner(profile), name=f"start {profile.engine}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _launch_runner(self, profile: Profile) -> None:
        try:
            runner = await self._launch(profile, in_background=self._starts_in_background())
        except Exception as error:
            self._start_finished(profile)
            self._start_failed(profile, error)
            return
        except asyncio.CancelledError:
            self._start_finished(profile)
            raise
        self._start_finished(profile)
        del self._failures[profile]
        self.errors.pop(profile, None)
        self._on_ready(runner)

    def _start_finished(self, profile: Profile) -> None:
        starting = self._runners.starting
        starting[profile] -= 1
        if not starting[profile]:
            del starting[profile]
        if self._has_postponed_starts:
            self._has_postponed_starts = False
            asyncio.get_running_loop().call_soon(self.fill)

    def _start_failed(self, profile: Profile, error: Exception) -> None:
        """Retries the start, because memory or processes may be short. After MAX_START_ATTEMPTS failures, the
        waiters get the error.
        """
        self._failures[profile] += 1
        if self._failures[profile] < MAX_START_ATTEMPTS:
            self.start(profile)
            return
        del self._failures[profile]
        self.spares.forget(profile)
        unavailable = error if isinstance(error, HutchError) else SandboxUnavailable(str(error))
        if self.warm_targets.get(profile):
            self.errors[profile] = str(unavailable)
            self._on_failed()
        for waiter in self._waiters.of(profile):
            if not waiter.future.done():
                waiter.future.set_exception(unavailable)

    def retry_failed(self) -> None:
        """Tries failed starts again, and forgets earlier failures."""
        self._failures.clear()
        if self.errors:
            self.fill()
        for profile in [*self.errors]:
            if not self._runners.starting[profile]:
                # `fill` started no runner of this profile, because enough runners exist. So the old error no
                # longer matters.
                del self.errors[profile]
