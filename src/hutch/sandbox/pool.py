"""Runner processes kept warm and lent out: shared ones for quickjs, single-use ones for deno.

Waiting is first come, first served, and bounded. A shared process belongs to one owner for its whole
life, unless owners share; a process that becomes idle too long, too old or suspect is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from hutch.errors import Busy, HutchError, SandboxUnavailable
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner
from hutch.sandbox.spares import Spares
from hutch.sandbox.stats import PoolStats, Tally, Why
from hutch.sandbox.waiting import Waiter, wait_guess
from hutch.session.host import Outcome, Session
from hutch.settings import Settings

Launch = Callable[[Profile], Awaitable[Runner]]

# Executions in flight in a process before a second one of the same owner is started.
SPREAD_AT = 2
# How long a process counts as busy that has been used: between two executions it only seems to be idle.
BUSY_SECONDS = 1.0
# How long one may do nothing between two executions before a single-use process may take its place.
PAUSE_SECONDS = 0.1
# How long a runner that missed its cancel grace may take before its process is ended.
SUSPECT_SECONDS = 0.25
HOUSEKEEPING_SECONDS = 5.0
# A single-use process that ends brings on its successor; one that goes on must not keep it waiting.
REFILL_AFTER = 0.02
# Where a process loads something first, it is still at that, if it was not a spare.
REFILL_PREPARED_AFTER = 0.5
START_ATTEMPTS = 3


class Pool:
    """Lends runners."""

    def __init__(self, settings: Settings, launch: Launch) -> None:
        self._settings = settings
        self._launch = launch
        self._shared: dict[tuple[Profile, str], list[Runner]] = {}
        self._warm: dict[Profile, deque[Runner]] = {}
        self._targets: dict[Profile, int] = {}
        self._claims: set[Profile] = set()
        self._spares = Spares(settings)
        self._busy: set[Runner] = set()
        self._waiters: deque[Waiter] = deque()
        self._starting: Counter[Profile] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[Runner] = set()
        self._failures: Counter[Profile] = Counter()
        self._closed = False
        self._tally = Tally()
        self._housekeeper: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    # --- lending ---

    async def acquire(self, profile: Profile, owner: str) -> Runner:
        """A runner for one execution. Raises Busy when none comes free in time."""
        if self._closed:
            raise Busy("The sandbox is shutting down.")
        self._keep_house()
        if profile.details.own_process:
            self._spares.use(profile, asyncio.get_running_loop().time())
            self._soon(self._end_crowded_out)
        if not self._is_wanted(profile, owner):
            runner = self._take(profile, owner)
            if runner is not None:
                return runner
        if len(self._waiters) >= self._settings.max_queue:
            raise self._refusal(f"{len(self._waiters)} executions are waiting already.")
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiter = Waiter(profile, owner, loop.create_future())
        self._waiters.append(waiter)
        self._fill()
        try:
            async with asyncio.timeout(self._settings.queue_seconds):
                return await waiter.future
        except TimeoutError:
            self._give_back(waiter)
            seconds = self._settings.queue_seconds
            raise self._refusal(f"No place came free within {seconds:g} s.") from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            self._tally.waited += 1
            self._tally.waited_seconds += loop.time() - began
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def _refusal(self, message: str) -> Busy:
        self._tally.refused += 1
        return Busy(message, retry_after=wait_guess(len(self._waiters)))

    def at_hand(self, profile: Profile, owner: str) -> Runner | None:
        """As `acquire`, but only one that can be had at once."""
        self._keep_house()
        return None if self._closed or self._is_wanted(profile, owner) else self._take(profile, owner)

    def _is_wanted(self, profile: Profile, owner: str) -> bool:
        """Whether somebody waits already for what this one would take."""
        return any(
            waiter.profile == profile
            and (profile.details.own_process or self._key(waiter.owner) == self._key(owner))
            for waiter in self._waiters
        )

    def _give_back(self, waiter: Waiter) -> None:
        """Who stops waiting may have been given a runner at that very moment."""
        if (runner := waiter.given()) is not None:
            self.release(runner)

    def release(self, runner: Runner, outcome: Outcome | None = None, session: Session | None = None) -> None:
        """Takes a runner back, or ends it where it may not be used again."""
        runner.in_flight -= 1
        if runner.profile.is_prepared and not runner.imported:
            self._give_up_on(runner.profile)
        if runner.spent(outcome):
            # Ending a process takes as long as many an execution: whoever waits for the result goes first.
            runner.suspects.add("")
            self._soon(lambda: self._end(runner, "used"))
        elif outcome is not None and outcome.unresponsive and session is not None and not session.answered:
            self._suspect(runner, session.id)
        elif runner.executions >= self._settings.recycle_after and runner.in_flight == 0:
            self._end(runner, "recycled")
        elif runner in self._busy:
            self._busy.discard(runner)
            self._warm.setdefault(runner.profile, deque()).appendleft(runner)
        self._serve()

    def _give_up_on(self, profile: Profile) -> None:
        """What it loads did not load in a whole execution: its spares would be at it for ever."""
        self._spares.forget(profile)
        for spare in [*self._warm.get(profile, ())]:
            self._end(spare, "idle")

    @property
    def has_room(self) -> bool:
        """Whether another process could start and nobody waits for one."""
        return not self._waiters and self._count() < self._settings.max_processes

    def warm(self, profile: Profile, count: int) -> None:
        """Keeps this many unowned runners of a profile ready from now on."""
        self._targets[profile] = count
        self._fill()

    def prepare(self, profile: Profile) -> None:
        """Starts one runner ahead of need, if there is room, and none in its place."""
        self._start(profile)

    def claim(self, profile: Profile) -> None:
        """Has one runner started in the first place that comes free, before those that somebody waits for."""
        self._claims.add(profile)
        self._fill()

    def has_coming(self, profile: Profile) -> bool:
        """Whether one is there that nobody has, or soon will be."""
        return bool(self._warm.get(profile)) or self._starting[profile] > 0

    async def warmed(self, profile: Profile) -> None:
        """Waits until a runner of a profile is ready."""
        while not self._warm.get(profile) and self._starting[profile] > 0:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _take(self, profile: Profile, owner: str) -> Runner | None:
        runner = (
            self._take_single(profile) if profile.details.own_process else self._take_shared(profile, owner)
        )
        if runner is not None:
            runner.in_flight += 1
        return runner

    def _take_single(self, profile: Profile) -> Runner | None:
        runner = self._pop_warm(profile)
        if runner is not None:
            self._busy.add(runner)
            # Starting the next one takes a core: not in the very milliseconds that most executions take.
            delay = REFILL_AFTER if runner.imported or not profile.is_prepared else REFILL_PREPARED_AFTER
            asyncio.get_running_loop().call_later(delay, self._fill)
        return runner

    def _take_shared(self, profile: Profile, owner: str) -> Runner | None:
        key = (profile, self._key(owner))
        mine = self._shared.get(key, [])
        usable = [each for each in mine if self._usable(each)]
        best = min(usable, key=lambda each: each.in_flight, default=None)
        if best is not None and best.in_flight < SPREAD_AT:
            return best
        if self._may_have_another(mine, urgent=best is None):
            fresh = self._pop_warm(profile)
            if fresh is not None:
                fresh.owner = key[1]
                self._shared.setdefault(key, []).append(fresh)
                self._soon(self._fill)
                return fresh
            if best is not None and self._starting[profile] == 0:
                self._start(profile)
        return best

    def _may_have_another(self, mine: list[Runner], *, urgent: bool) -> bool:
        """Whether the owner of these may get one process more: unless all are full, it helps only if a core
        has nothing to do."""
        # Who is on the way out does not count: its place is free for a successor.
        count = sum(each.alive and not self._is_leaving(each) for each in mine)
        if urgent or count >= self._settings.quickjs_processes:
            return count < self._settings.quickjs_processes
        recently = asyncio.get_running_loop().time() - BUSY_SECONDS
        everyone = (each for others in self._shared.values() for each in others)
        busy = sum(each.in_flight > 0 or each.idle_since > recently for each in everyone)
        return busy < self._settings.quickjs_processes

    def _key(self, owner: str) -> str:
        return "" if self._settings.owners_share else owner

    def _is_leaving(self, runner: Runner) -> bool:
        return bool(runner.suspects) or runner.executions >= self._settings.recycle_after

    def _usable(self, runner: Runner) -> bool:
        return runner.alive and not self._is_leaving(runner) and runner.in_flight < self._settings.quickjs_vms

    def _pop_warm(self, profile: Profile) -> Runner | None:
        ready = self._warm.get(profile)
        while ready:
            runner = ready.popleft()
            if not ready:
                # What its runners were told is not kept longer than they are.
                del self._warm[profile]
            if runner.alive:
                return runner
        return None

    # --- starting ---

    def _fill(self) -> None:
        """Starts what the waiters and the targets want, as far as there is room."""
        if self._closed:
            return
        for profile in [*self._claims]:
            if self.has_coming(profile):
                self._claims.discard(profile)
            elif self._count() < self._settings.max_processes:
                self._claims.discard(profile)
                self._start(profile)
        for profile, count in self._wanted().items():
            have = self._starting[profile] + len(self._warm.get(profile, ()))
            for _ in range(count - have):
                if not self._room_for(profile):
                    return
                self._start(profile)

    def _wanted(self) -> Counter[Profile]:
        """Processes wanted beyond those in use: for waiters first, then for the targets."""
        wanted: Counter[Profile] = Counter()
        owners: set[tuple[Profile, str]] = set()
        for waiter in self._waiters:
            if waiter.profile.details.own_process:
                wanted[waiter.profile] += 1
            else:
                owners.add((waiter.profile, self._key(waiter.owner)))
        for profile, _ in owners:
            wanted[profile] += 1
        for profile in {*self._targets} | self._spares.profiles():
            wanted[profile] = max(wanted[profile], self._target(profile))
        return wanted

    def _target(self, profile: Profile) -> int:
        """How many are to be warm: as many as asked for, and spares of a single-use profile in use."""
        return max(self._targets.get(profile, 0), self._spares.wanted(profile))

    def _room_for(self, profile: Profile) -> bool:
        if self._count() < self._settings.max_processes:
            return True
        if self._waiters and not self._leaving:
            victim = self._least_needed(profile)
            if victim is not None and self._is_spared(victim, profile):
                self._look_again()
            elif victim is not None:
                self._end(victim, "crowded out")
        return False

    def _is_spared(self, victim: Runner, profile: Profile) -> bool:
        """Whether it stays, for a moment: it was used so lately that it may be preparing code for single-use
        processes, and one of these is in use, whose place comes free without it."""
        if not profile.details.own_process or not self._busy:
            return False
        return asyncio.get_running_loop().time() - victim.idle_since < PAUSE_SECONDS

    def _look_again(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        self._fill()

    def _count(self) -> int:
        shared = sum(len(each) for each in self._shared.values())
        warm = sum(len(each) for each in self._warm.values())
        return shared + warm + len(self._busy) + len(self._leaving) + self._starting.total()

    def _least_needed(self, profile: Profile) -> Runner | None:
        """The process that has idled longest and is of no use to who waits first."""
        idle = [each for mine in self._shared.values() for each in mine if each.in_flight == 0]
        idle += [each for other, ready in self._warm.items() if other != profile for each in ready]
        return min(idle, key=lambda each: each.idle_since, default=None)

    def _start(self, profile: Profile) -> None:
        if self._closed or self._count() >= self._settings.max_processes:
            return
        self._starting[profile] += 1
        task = asyncio.get_running_loop().create_task(self._bring_up(profile), name=f"start {profile.engine}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring_up(self, profile: Profile) -> None:
        try:
            runner = await self._launch(profile)
        except Exception as error:
            self._over(profile)
            self._failed(profile, error)
            return
        except asyncio.CancelledError:
            self._over(profile)
            raise
        self._over(profile)
        del self._failures[profile]
        self._tally.started += 1
        runner.on_exit = self._gone
        if self._closed:
            runner.kill()
            return
        self._warm.setdefault(profile, deque()).append(runner)
        self._serve()

    def _over(self, profile: Profile) -> None:
        self._starting[profile] -= 1
        if not self._starting[profile]:
            del self._starting[profile]

    def _failed(self, profile: Profile, error: Exception) -> None:
        """A start may fail for want of memory or processes: after a few in a row, the waiters are told."""
        self._failures[profile] += 1
        if self._failures[profile] < START_ATTEMPTS:
            self._start(profile)
            return
        del self._failures[profile]
        self._spares.forget(profile)
        unavailable = error if isinstance(error, HutchError) else SandboxUnavailable(str(error))
        for waiter in [each for each in self._waiters if each.profile == profile]:
            if not waiter.future.done():
                waiter.future.set_exception(unavailable)

    def _serve(self) -> None:
        """Gives what is free to whoever has waited longest."""
        used_up: set[Profile] = set()
        for waiter in list(self._waiters):
            if waiter.future.done() or waiter.profile in used_up:
                continue
            runner = self._take(waiter.profile, waiter.owner)
            if runner is not None:
                waiter.future.set_result(runner)
                self._waiters.remove(waiter)
            elif waiter.profile.details.own_process:
                used_up.add(waiter.profile)
        if self._waiters:
            self._fill()

    # --- ending ---

    def _suspect(self, runner: Runner, id: str) -> None:
        """A silent runner gets nothing new; if it stays silent, it goes, and its neighbours with it."""
        runner.suspects.add(id)
        runner.link.on_late = lambda late: self._cleared(runner, late)

        def decide() -> None:
            if id in runner.suspects:
                self._end(runner, "silent")

        asyncio.get_running_loop().call_later(SUSPECT_SECONDS, decide)

    def _cleared(self, runner: Runner, id: str) -> None:
        runner.suspects.discard(id)
        self._serve()

    def _end(self, runner: Runner, why: Why) -> None:
        self._forget(runner)
        if runner.exited:
            return
        self._tally.ended[why] += 1
        self._leaving.add(runner)
        runner.kill()

    def _forget(self, runner: Runner) -> None:
        self._busy.discard(runner)
        ready = self._warm.get(runner.profile)
        if ready is not None and runner in ready:
            ready.remove(runner)
            if not ready:
                del self._warm[runner.profile]
        for key, mine in list(self._shared.items()):
            if runner in mine:
                mine.remove(runner)
                if not mine:
                    del self._shared[key]

    def _gone(self, runner: Runner) -> None:
        if runner.profile.is_prepared and runner.executions == 0 and runner not in self._leaving:
            # It ended by itself before it was used: the next one would too.
            self._spares.forget(runner.profile)
        if runner not in self._leaving:
            self._tally.ended["lost"] += 1
        self._leaving.discard(runner)
        self._forget(runner)
        self._serve()
        self._fill()

    async def close(self) -> None:
        """Ends every process and waits until all are gone."""
        self._closed = True
        for timer in (self._housekeeper, self._looking):
            if timer is not None:
                timer.cancel()
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(Busy("The sandbox is shutting down."))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        everyone = [
            *self._leaving,
            *self._busy,
            *(each for mine in self._shared.values() for each in mine),
            *(each for ready in self._warm.values() for each in ready),
        ]
        for runner in everyone:
            runner.kill()
        await asyncio.gather(*(runner.wait() for runner in everyone))

    # --- keeping house ---

    def _keep_house(self) -> None:
        if self._housekeeper is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._housekeeper = loop.call_later(HOUSEKEEPING_SECONDS, self._tidy)

    def _tidy(self) -> None:
        """Ends what has idled too long, beyond what is to be kept warm."""
        self._housekeeper = None
        before = asyncio.get_running_loop().time() - self._settings.idle_seconds
        self._spares.expire(asyncio.get_running_loop().time())
        self._bound_spares()
        self._failures.clear()
        for mine in list(self._shared.values()):
            for runner in list(mine):
                if runner.in_flight == 0 and runner.idle_since < before:
                    self._end(runner, "idle")
        for profile, ready in [*self._warm.items()]:
            surplus = len(ready) - self._target(profile)
            # Of prepared ones the first has served already and can again.
            for runner in list(reversed(ready) if profile.is_prepared else ready)[: max(0, surplus)]:
                if profile.is_prepared or runner.idle_since < before:
                    self._end(runner, "idle")
        if self._count() > 0:
            self._keep_house()

    def _end_crowded_out(self) -> None:
        """Ends the spares of packages that others have taken the place of."""
        for profile, ready in [*self._warm.items()]:
            if profile.is_prepared and not self._target(profile):
                for runner in [*ready]:
                    self._end(runner, "crowded out")

    def _bound_spares(self) -> None:
        """Forgets the spares that are more than there is memory for."""
        for runner in self._spares.beyond_memory(each for ready in self._warm.values() for each in ready):
            self._spares.forget(runner.profile)
            self._end(runner, "crowded out")

    def _soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)

    def stats(self) -> PoolStats:
        shared = [each for mine in self._shared.values() for each in mine]
        warm = [each for ready in self._warm.values() for each in ready]
        starting, waiting = self._starting.total(), len(self._waiters)
        return PoolStats.of([*shared, *self._busy], warm, starting, waiting, self._tally)
