"""Pool of runner processes: shared processes for quickjs, single-use processes for the other engines.

The queue is bounded. Owners take turns in it, and the executions of one owner are served first come, first
served. No owner can take all processes or fill the queue, and one warm process is kept for newcomers. A
shared process belongs to one owner for its whole life unless `owners_share` is set. Processes that are idle
too long, have served too many executions or stop responding are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter

from hutch.errors import Busy, RateLimited
from hutch.sandbox.pool.cpu_shares import CpuShares
from hutch.sandbox.pool.inventory import RunnerInventory
from hutch.sandbox.pool.lease import Lease
from hutch.sandbox.pool.queue import Waiter, WaitQueue
from hutch.sandbox.pool.shares import PoolShares
from hutch.sandbox.pool.starter import LaunchRunner, RunnerStarter
from hutch.sandbox.pool.stats import EndReason, PoolCounters, PoolStats, retry_after
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.session.relayed_session import AnySession
from hutch.session.run import Result
from hutch.settings import Settings

# Start a second process for an owner once this many executions are in flight in the first process.
SPREAD_AT = 2
# A process counts as busy for this long after an execution, because another execution often follows.
BUSY_SECONDS = 1.0
# Time after which a runner that did not confirm a cancellation is killed.
UNRESPONSIVE_SECONDS = 0.25
BLOCKED = "another execution in the same process blocked it"
CLEANUP_SECONDS = 5.0
# Delay before the successor of a single-use process starts. If the process ends sooner, the successor starts
# immediately.
REFILL_AFTER = 0.02
# Like REFILL_AFTER, for a process that was not a spare and therefore still has to import its package.
REFILL_AFTER_PRELOAD = 0.5


class Pool:
    def __init__(self, settings: Settings, launch: LaunchRunner) -> None:
        self.shares = PoolShares(settings)
        self.runners = RunnerInventory()
        self._settings = settings
        self._waiters = WaitQueue(self.shares)
        self._cpu_shares = CpuShares(self.runners)
        self.starter = RunnerStarter(
            settings,
            launch,
            self.runners,
            self._waiters,
            self.shares,
            on_ready=self._on_ready,
            on_failed=self._schedule_cleanup,
            evict=lambda runner: self._end(runner, "crowded out"),
            starts_in_background=self._cpu_shares.starts_in_background,
        )
        self._closed = False
        self._counters = PoolCounters()
        self._cleanup_timer: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def problem(self) -> str | None:
        """Reason why executions cannot start, or None."""
        return "it is shutting down" if self._closed else next(iter(self.starter.errors.values()), None)

    # --- leasing ---

    def lease(self, profile: Profile, owner: str) -> Lease:
        """Returns a context manager that holds a runner for one execution:
        `async with pool.lease(profile, owner) as runner: result = await runner.run(…)`.
        """
        return Lease(self, profile, owner)

    def try_lease(self, profile: Profile, owner: str) -> Lease | None:
        """Returns a lease with a runner, or None if the lease would have to wait. The caller must enter the
        lease.
        """
        runner = self.try_acquire(profile, owner)
        return None if runner is None else Lease(self, profile, owner, runner)

    def try_acquire(self, profile: Profile, owner: str) -> Runner | None:
        """Takes a runner like `acquire`, or returns None if `acquire` would have to wait."""
        self._schedule_cleanup()
        if self._closed or self._waiters.has(profile, owner):
            return None
        return self._take(profile, owner)

    async def acquire(self, profile: Profile, owner: str) -> Runner:
        """Takes a runner for a lease. Raises Busy if no runner becomes available in time."""
        if self._closed:
            raise Busy("The sandbox is shutting down.")
        self._schedule_cleanup()
        if profile.engine_spec.own_process:
            self.starter.spares.record_use(profile, asyncio.get_running_loop().time())
            self._call_soon(self._end_replaced_spares)
        # Taking a free runner here does not overtake an owner with an earlier turn: waiters are served as
        # soon as a runner becomes free, so no waiter can use a runner that is still free.
        if not self._waiters.has(profile, owner):
            runner = self._take(profile, owner)
            if runner is not None:
                return runner
        self._check_queue(owner)
        loop = asyncio.get_running_loop()
        started = loop.time()
        waiter = Waiter(profile, owner, loop.create_future())
        self._waiters.add(waiter)
        self.shares.queue.take(owner)
        self.starter.fill()
        try:
            async with asyncio.timeout(self._settings.queue_seconds):
                return await waiter.future
        except TimeoutError:
            self._release_assigned(waiter)
            message = f"No runner became available within {self._settings.queue_seconds:g} s."
            reason = self.shares.explain_wait(profile, owner)
            if reason is None:
                raise self._busy_error(message) from None
            raise self._share_error(reason.limit, f"{message} {reason.text}") from None
        except asyncio.CancelledError:
            self._release_assigned(waiter)
            raise
        finally:
            self.shares.queue.give_back(owner)
            self._counters.waited += 1
            self._counters.waited_seconds += loop.time() - started
            self._waiters.remove(waiter)

    def _busy_error(self, message: str) -> Busy:
        self._counters.refused += 1
        return Busy(message, retry_after=retry_after(len(self._waiters)))

    def _share_error(self, limit: str, message: str) -> RateLimited:
        """Returns the error for an owner that has used up its share. This is not counted as `refused`,
        because other owners can still run executions.
        """
        return RateLimited(message, retry_after=retry_after(len(self._waiters)), limit=limit)

    def _check_queue(self, owner: str) -> None:
        """Raises Busy if the queue, or the owner's share of it, is full."""
        if len(self._waiters) >= self._settings.max_queue:
            raise self._busy_error(f"{len(self._waiters)} executions are waiting already (max_queue).")
        if not self.shares.queue.may_take(owner):
            raise self._share_error(
                "max_queue_per_owner",
                "Too many of your executions are waiting already: one owner may have"
                f" {self.shares.queue.per_owner} of them (max_queue_per_owner).",
            )

    def _release_assigned(self, waiter: Waiter) -> None:
        """Releases a runner that was assigned just before the waiter gave up."""
        if (runner := waiter.assigned_runner()) is not None:
            self.release(runner, owner=waiter.owner)

    def release(
        self,
        runner: Runner,
        result: Result | None = None,
        session: AnySession | None = None,
        *,
        owner: str = "default",
    ) -> None:
        """Takes a runner back at the end of a lease of `owner`. Ends the runner if it must not be reused."""
        runner.in_flight -= 1
        self.shares.give_back(runner, owner)
        if runner.profile.has_preload and not runner.has_imported:
            self._drop_spares(runner.profile)
        if runner.is_used_up(result):
            # End the process later, because killing it takes as long as a short execution and the caller
            # should get its result first.
            runner.unanswered_sessions.add("")
            self._call_soon(lambda: self._end(runner, "used"))
        elif session is not None and session.unresponsive and not session.done_received:
            self._mark_unresponsive(runner, session)
        elif runner.in_flight == 0 and runner.unanswered_sessions:
            self._end_unless_answered(runner)
        elif runner.in_flight == 0 and self._is_retiring(runner):
            self._end(runner, "recycled")
        elif runner in self.runners.busy:
            self.runners.busy.discard(runner)
            self.runners.add_warm(runner, first=True)
        self._serve_waiters(runner)

    def _drop_spares(self, profile: Profile) -> None:
        """Ends all spares of a profile. Called if the preload took longer than a whole execution, so that
        spares would not help.
        """
        self.starter.spares.forget(profile)
        for spare in [*self.runners.warm.get(profile, ())]:
            self._end(spare, "idle")

    @property
    def has_waiters(self) -> bool:
        return len(self._waiters) > 0

    @property
    def has_capacity(self) -> bool:
        """True if another process could start and no execution is waiting for a process."""
        return not self._waiters and self.runners.process_count() < self._settings.max_processes

    def keep_warm(self, profile: Profile, count: int) -> None:
        """Keeps `count` unowned runners of this profile ready from now on."""
        self.starter.keep_warm(profile, count)

    def prestart(self, profile: Profile) -> None:
        """Starts one runner in advance if there is capacity. No other runner is started when this one is
        taken.
        """
        self.starter.start(profile)

    def reserve_start(self, profile: Profile) -> None:
        """Starts one runner as soon as there is capacity. This start takes precedence over starts for waiting
        executions, but does not evict other runners.
        """
        self.starter.reserve(profile)

    def has_unused(self, profile: Profile) -> bool:
        """Returns True if an unused runner of this profile is ready or starting."""
        return self.runners.has_unused(profile)

    async def wait_warm(self, profile: Profile) -> None:
        await self.starter.wait_warm(profile)

    def _take(self, profile: Profile, owner: str) -> Runner | None:
        if not self.shares.may_run(profile, owner):
            return None
        holder = self.shares.holder(profile, owner)
        may_take_place = self.shares.processes.may_take(holder)
        if not profile.engine_spec.own_process:
            runner = self._take_shared(profile, holder, may_take_place)
        else:
            runner = self._take_single(profile, owner) if may_take_place else None
        if runner is not None:
            runner.in_flight += 1
            self.shares.take(runner, owner, holder)
            self._cpu_shares.apply(runner)
            if self.shares.processes.owner_count > 1:
                self._cpu_shares.watch()
        return runner

    def _take_single(self, profile: Profile, owner: str) -> Runner | None:
        runner = self._pop_warm(profile, owner)
        if runner is not None:
            self.runners.busy.add(runner)
            # The successor starts later, so that it does not compete with the execution, which often takes
            # only milliseconds.
            delay = REFILL_AFTER if runner.has_imported or not profile.has_preload else REFILL_AFTER_PRELOAD
            asyncio.get_running_loop().call_later(delay, self.starter.fill)
        return runner

    def _take_shared(self, profile: Profile, holder: str, may_take_place: bool) -> Runner | None:
        key = (profile, holder)
        owned = self.runners.shared.get(key, [])
        usable = [
            runner for runner in owned if (may_take_place or runner.in_flight) and self._is_usable(runner)
        ]
        best = min(usable, key=attrgetter("in_flight"), default=None)
        if best is not None and best.in_flight < SPREAD_AT:
            return best
        # Skip the counting in `_may_add_process` if the owner already has as many usable processes as are
        # allowed.
        may_add = may_take_place and len(usable) < self._settings.quickjs_processes
        if may_add and self._may_add_process(owned, urgent=best is None):
            fresh = self._pop_warm(profile, holder)
            if fresh is not None:
                fresh.owner = holder
                self.runners.shared.setdefault(key, []).append(fresh)
                self._call_soon(self.starter.fill)
                return fresh
            if best is not None and self.runners.starting[profile] == 0:
                self.starter.start(profile)
        return best

    def _may_add_process(self, owned: list[Runner], *, urgent: bool) -> bool:
        """Returns True if an owner may get another process. The caller passes `urgent` if all processes of
        the owner are full. Without `urgent`, the owner gets another process only while a core is idle.
        """
        # Exclude processes that are being replaced.
        count = sum(runner.is_alive and not self._is_retiring(runner) for runner in owned)
        if urgent or count >= self._settings.quickjs_processes:
            return count < self._settings.quickjs_processes
        recently = asyncio.get_running_loop().time() - BUSY_SECONDS
        runners = self.runners.all_shared()
        busy = sum(runner.in_flight > 0 or runner.idle_since > recently for runner in runners)
        return busy < self._settings.quickjs_processes

    def _is_retiring(self, runner: Runner) -> bool:
        return (
            bool(runner.unanswered_sessions)
            or runner.executions >= self._settings.recycle_after
            or runner.is_stuck_in_background
        )

    def _is_usable(self, runner: Runner) -> bool:
        return (
            runner.is_alive
            and not self._is_retiring(runner)
            and runner.in_flight < self._settings.quickjs_vms
        )

    def _pop_warm(self, profile: Profile, holder: str) -> Runner | None:
        """Takes an unused runner for this holder, and counts this as a turn of the holder."""
        ready = self.runners.warm.get(profile)
        while ready:
            kept = self._kept_for_newcomers(profile, holder)
            if len(ready) <= kept:
                return None
            # Keep the oldest runner for newcomers, because a new one still has to run its first-time code.
            runner = self.runners.pop_warm(profile, newest=kept > 0)
            if runner.is_alive:
                self.shares.turns(profile).take(holder)
                return runner
        return None

    def _kept_for_newcomers(self, profile: Profile, holder: str) -> int:
        """Returns the number of unused runners that this holder must leave to newcomers, which are owners
        that took no turn in the last one and a half rounds. The number is one if several owners compete for
        the runners of a profile that is kept warm.

        A start takes as long as many executions, so a newcomer without a warm runner would wait for more than
        its own turn.
        """
        turns = self.shares.turns(profile)
        if not self.starter.is_kept_warm(profile) or turns.is_newcomer(holder):
            return 0
        return 1 if turns.has_others(holder) else 0

    # --- serving waiters ---

    def _on_ready(self, runner: Runner) -> None:
        self._counters.started += 1
        runner.on_exit = self._on_exit
        if self._closed:
            runner.kill()
            return
        self.runners.add_warm(runner)
        self._serve_waiters()

    def _serve_waiters(self, runner: Runner | None = None) -> None:
        """Gives free runners to waiting executions. `runner`: a runner that may have become free."""
        if not self._waiters:
            return
        if runner is not None and not runner.profile.engine_spec.own_process and runner.owner is not None:
            # A shared process that belongs to an owner serves only this owner's executions. If owners share
            # processes, it serves all owners.
            if self._settings.owners_share:
                self._waiters.serve(runner.profile, self._take_for, self._may_skip)
            else:
                self._waiters.serve_owner(runner.profile, runner.owner, self._take_for)
        for profile in [*self.runners.warm]:
            self._waiters.serve(profile, self._take_for, self._may_skip)
        if self._waiters:
            self.starter.fill()

    def _take_for(self, waiter: Waiter) -> Runner | None:
        return self._take(waiter.profile, waiter.owner)

    def _may_skip(self, waiter: Waiter) -> bool:
        """Returns True if a runner may be free for a later waiter although none is free for this waiter, for
        example because this waiter's owner has used up its share.
        """
        profile, owner = waiter.profile, waiter.owner
        holder = self.shares.holder(profile, owner)
        if not self.shares.may_run(profile, owner) or not self.shares.processes.may_take(holder):
            return True
        free = len(self.runners.warm.get(profile, ()))
        return not self._settings.owners_share and free > self._kept_for_newcomers(profile, holder)

    # --- ending ---

    def _mark_unresponsive(self, runner: Runner, session: AnySession) -> None:
        """Gives the runner no new executions. Kills the runner, with its other executions, if the runner
        stays silent.

        If the runner has not started the session's execution, another execution may be blocking it with a
        long native call. That execution ends at its own time limit, so the runner is killed only when no
        execution is left in it.
        """
        runner.unanswered_sessions.add(session.id)
        runner.multiplexer.on_late_done = lambda late: self._mark_responsive(runner, late)
        if session.started or runner.in_flight == 0:
            self._end_unless_answered(runner)

    def _end_unless_answered(self, runner: Runner) -> None:
        unanswered = set(runner.unanswered_sessions)

        def end() -> None:
            if unanswered & runner.unanswered_sessions:
                # Executions that have called no tool are started again. All others fail with the reason
                # BLOCKED.
                runner.multiplexer.mark_lost(BLOCKED)
                self._end(runner, "silent")

        asyncio.get_running_loop().call_later(UNRESPONSIVE_SECONDS, end)

    def _mark_responsive(self, runner: Runner, id: str) -> None:
        runner.unanswered_sessions.discard(id)
        self._serve_waiters(runner)

    def _end(self, runner: Runner, reason: EndReason) -> None:
        self._forget(runner)
        if runner.has_exited:
            return
        self._counters.ended[reason] += 1
        self.runners.ending.add(runner)
        runner.kill()

    def _forget(self, runner: Runner) -> None:
        self.shares.give_back_process(runner)
        self.runners.remove(runner)

    def _on_exit(self, runner: Runner) -> None:
        if runner.profile.has_preload and runner.executions == 0 and runner not in self.runners.ending:
            # The runner exited by itself before it was used. A new runner of this profile would do the same,
            # so keep no spares of it.
            self.starter.spares.forget(runner.profile)
        if runner not in self.runners.ending:
            self._counters.ended["lost"] += 1
        self.runners.ending.discard(runner)
        self._forget(runner)
        self._serve_waiters()
        self.starter.fill()

    async def close(self) -> None:
        self._closed = True
        self._cpu_shares.close()
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
        for waiter in [*self._waiters]:
            if not waiter.future.done():
                waiter.future.set_exception(Busy("The sandbox is shutting down."))
        await self.starter.close()
        runners = [
            *self.runners.ending,
            *self.runners.busy,
            *self.runners.all_shared(),
            *self.runners.all_warm(),
        ]
        for runner in runners:
            runner.kill()
        await asyncio.gather(*(runner.wait() for runner in runners))

    # --- cleanup ---

    def _schedule_cleanup(self) -> None:
        if self._cleanup_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._cleanup_timer = loop.call_later(CLEANUP_SECONDS, self._clean_up)

    def _clean_up(self) -> None:
        self._cleanup_timer = None
        before = asyncio.get_running_loop().time() - self._settings.idle_seconds
        self.starter.spares.expire(asyncio.get_running_loop().time())
        self._end_spares_over_memory()
        for owned in list(self.runners.shared.values()):
            for runner in list(owned):
                if runner.in_flight == 0 and runner.idle_since < before:
                    self._end(runner, "idle")
        for profile, ready in [*self.runners.warm.items()]:
            surplus = len(ready) - self.starter.warm_target(profile)
            # With a preload, runners that have already served executions are at the start of the queue and
            # are kept. The surplus is taken from the end of the queue.
            for runner in list(reversed(ready) if profile.has_preload else ready)[: max(0, surplus)]:
                if profile.has_preload or runner.idle_since < before:
                    self._end(runner, "idle")
        self.starter.retry_failed()
        if self.runners.process_count() > 0:
            self._schedule_cleanup()

    def _end_replaced_spares(self) -> None:
        """Ends the spares of packages that are no longer among the most recently used ones."""
        for profile, ready in [*self.runners.warm.items()]:
            if profile.has_preload and not self.starter.warm_target(profile):
                for runner in [*ready]:
                    self._end(runner, "crowded out")

    def _end_spares_over_memory(self) -> None:
        for runner in self.starter.spares.over_memory(self.runners.all_warm()):
            self.starter.spares.forget(runner.profile)
            self._end(runner, "crowded out")

    def _call_soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)

    def count_warm(self, mounted: str) -> int:
        """Returns the number of idle runners into whose jail this folder is mounted."""
        return sum(
            len(runners)
            for profile, runners in self.runners.warm.items()
            if any(mount.source == mounted for mount in profile.mounts)
        )

    def stats(self) -> PoolStats:
        starting, waiting = self.runners.starting.total(), len(self._waiters)
        return PoolStats.of(self.runners.in_use(), self.runners.all_warm(), starting, waiting, self._counters)
