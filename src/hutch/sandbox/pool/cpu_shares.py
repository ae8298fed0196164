"""Prefers executions of owners that use little CPU time to those of owners that use much.

The kernel divides the cores equally among all busy processes, one of which is the host. Beside many busy
guests, a short execution therefore waits for all of them several times: until the host has read the request,
until the guest has run, and until the host has read its result. On a machine with 2 cores and 16 busy owners,
`1+1` took 20 times as long as on an idle one. Therefore, while more processes compute than there are cores,
an owner that uses more CPU time than the average owner gets a lower priority: its processes run in the
background.
"""

from __future__ import annotations

import asyncio

from hutch.sandbox.pool.inventory import RunnerInventory
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.priority import can_restore
from hutch.settings import cores

TICK_SECONDS = 0.05
# Factor by which the counted CPU time is reduced at each tick, so that recent use counts most. After half a
# second, half of the CPU time is left.
DECAY = 0.5 ** (TICK_SECONDS / 0.5)
# A process counts as computing if it used more CPU time than this in a tick. The value is low, because other
# programs may use the cores too.
COMPUTING_SECONDS = 0.001
# Fractions of the owners' average CPU time. The processes of an owner that uses more than the first fraction
# are put into the background. They are brought back when the owner uses less than the second fraction. A
# newcomer stays below the first fraction while V8 compiles QuickJS in its new process. In the background, its
# executions would take up to 100 ms meanwhile.
BACKGROUND_ABOVE, FOREGROUND_BELOW = 1.0, 0.5
# An owner that uses less than this fraction of one core is never put into the background, because other busy
# programs may make the average of the owners low.
MIN_BACKGROUND_PART = 0.03


class CpuShares:
    """Measures the CPU time of owners, and chooses the priority of their processes."""

    def __init__(self, runners: RunnerInventory) -> None:
        self._runners = runners
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[Runner, float] = {}
        """CPU seconds of each process at the last tick."""
        self._used: dict[str, float] = {}
        """CPU seconds of each owner. Earlier ticks count less."""
        self._computing = 0
        """Number of processes that computed since the last tick."""
        self._background: set[str] = set()
        """Owners whose processes run in the background."""

    def watch(self) -> None:
        """Starts measuring. The measurement ends by itself when at most one owner has executions and no
        process runs in the background.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def apply(self, runner: Runner) -> None:
        """Gives a runner the priority of its owner."""
        in_background = runner.owner_or_holder in self._background
        if in_background != runner.is_in_background:
            runner.set_background(in_background)

    def starts_in_background(self) -> bool:
        """Returns True if runners should start with a lower priority, because several owners have executions.

        A start takes as much CPU time as many executions, and the owner of the new runner is not known yet.
        `apply` restores the priority when the runner is taken, unless its owner uses much CPU time.
        """
        return self._timer is not None and can_restore()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        runners = [runner for runner in self._runners.in_use() if runner.owner_or_holder is not None]
        self._measure(runners)
        self._choose()
        for runner in runners:
            self.apply(runner)
        if self._background or len({runner.holder for runner in runners if runner.in_flight}) > 1:
            self.watch()
        else:
            self._seen.clear()
            self._used.clear()

    def _measure(self, runners: list[Runner]) -> None:
        self._used = {owner: used * DECAY for owner, used in self._used.items() if used > 0.0001}
        seen: dict[Runner, float] = {}
        self._computing = 0
        for runner in runners:
            owner, now = runner.owner_or_holder, runner.cpu_seconds()
            if now is None or owner is None:
                continue
            seen[runner] = now
            used = now - self._seen.get(runner, now)
            self._computing += used > COMPUTING_SECONDS
            self._used[owner] = self._used.get(owner, 0.0) + used
        self._seen = seen

    def _choose(self) -> None:
        """Decides which owners' processes run in the background."""
        is_busy = len(self._used) > 1 and self._computing > cores()
        average = sum(self._used.values()) / max(1, len(self._used))
        # The value that `_used` has for an owner that constantly uses one core.
        core = TICK_SECONDS / (1 - DECAY)
        above = max(BACKGROUND_ABOVE * average, MIN_BACKGROUND_PART * core)
        below = FOREGROUND_BELOW * average
        self._background = {
            owner
            for owner, used in self._used.items()
            if (is_busy and used > above)
            or (owner in self._background and self._computing > 1 and used > below)
        }
