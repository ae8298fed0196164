"""Runners of a pool, grouped by their current state."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator

from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile


class RunnerInventory:
    def __init__(self) -> None:
        self.shared: dict[tuple[Profile, str], list[Runner]] = {}
        """Runners that serve many executions, by profile and owner."""
        self.warm: dict[Profile, deque[Runner]] = {}
        """Unused runners."""
        self.busy: set[Runner] = set()
        """Single-use runners that run an execution."""
        self.ending: set[Runner] = set()
        """Runners that were killed and have not exited yet."""
        self.starting: Counter[Profile] = Counter()
        """Number of runners that start."""

    def in_use(self) -> Iterator[Runner]:
        """Yields the runners that belong to an owner."""
        return itertools.chain(self.all_shared(), self.busy)

    def all_shared(self) -> Iterator[Runner]:
        return itertools.chain.from_iterable(self.shared.values())

    def all_warm(self) -> Iterator[Runner]:
        return itertools.chain.from_iterable(self.warm.values())

    def process_count(self) -> int:
        """Returns the number of processes, including those that start or end."""
        shared = sum(map(len, self.shared.values()))
        warm = sum(map(len, self.warm.values()))
        return shared + warm + len(self.busy) + len(self.ending) + self.starting.total()

    def has_unused(self, profile: Profile) -> bool:
        """Returns True if an unused runner of this profile is ready or starting."""
        return bool(self.warm.get(profile)) or self.starting[profile] > 0

    def add_warm(self, runner: Runner, *, first: bool = False) -> None:
        """Adds an unused runner. With `first`, this runner is the next one that is taken."""
        ready = self.warm.setdefault(runner.profile, deque())
        if first:
            ready.appendleft(runner)
        else:
            ready.append(runner)

    def pop_warm(self, profile: Profile, *, newest: bool = False) -> Runner:
        ready = self.warm[profile]
        runner = ready.pop() if newest else ready.popleft()
        if not ready:
            # Delete the empty entry. Otherwise its key would keep the profile, with the stdin payload, in
            # memory.
            del self.warm[profile]
        return runner

    def remove(self, runner: Runner) -> None:
        self.busy.discard(runner)
        ready = self.warm.get(runner.profile)
        if ready is not None and runner in ready:
            ready.remove(runner)
            if not ready:
                del self.warm[runner.profile]
        for key, owned in list(self.shared.items()):
            if runner in owned:
                owned.remove(runner)
                if not owned:
                    del self.shared[key]
