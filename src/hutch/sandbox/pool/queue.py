"""Queue of executions that wait for a runner. Owners take turns."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from hutch.sandbox.pool.shares import PoolShares
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile


class Waiter(msgspec.Struct, eq=False):
    profile: Profile
    owner: str
    future: asyncio.Future[Runner]

    def assigned_runner(self) -> Runner | None:
        done = self.future.done() and not self.future.cancelled() and not self.future.exception()
        return self.future.result() if done else None


class _Lane(msgspec.Struct, eq=False):
    """Executions of one owner that wait for the same profile, first come, first served."""

    owner: str
    # Not a deque, because waiters that give up are removed from anywhere.
    waiters: OrderedDict[Waiter, None] = msgspec.field(default_factory=OrderedDict)


class _Turn(NamedTuple):
    """Entry of a heap: the next turn of a lane. Of equal turns, the lower number comes first."""

    begins: float
    number: int
    lane: _Lane


class WaitQueue:
    """Waiting executions, with one heap of owners for each profile.

    Adding, removing and serving an execution takes a time that grows with the logarithm of the number of
    waiting owners. The number of executions that an owner has waiting does not matter.
    """

    def __init__(self, shares: PoolShares) -> None:
        self._shares = shares
        self._lanes: dict[Profile, dict[str, _Lane]] = {}
        self._turns: dict[Profile, list[_Turn]] = {}
        self._numbers = itertools.count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Waiter]:
        return itertools.chain.from_iterable(self.of(profile) for profile in [*self._lanes])

    @property
    def entry_count(self) -> int:
        """Number of entries in the heaps, including those of lanes that became empty."""
        return sum(map(len, self._turns.values()))

    def of(self, profile: Profile) -> list[Waiter]:
        """Returns all waiters of a profile."""
        return [waiter for lane in self._lanes.get(profile, {}).values() for waiter in lane.waiters]

    def profiles(self) -> list[Profile]:
        return [*self._lanes]

    def has(self, profile: Profile, owner: str) -> bool:
        return owner in self._lanes.get(profile, ())

    def add(self, waiter: Waiter) -> None:
        lanes = self._lanes.setdefault(waiter.profile, {})
        lane = lanes.get(waiter.owner)
        if lane is None:
            lane = lanes[waiter.owner] = _Lane(waiter.owner)
            begins = self._shares.turns(waiter.profile).next(waiter.owner)
            heap = self._turns.setdefault(waiter.profile, [])
            heapq.heappush(heap, _Turn(begins, next(self._numbers), lane))
        lane.waiters[waiter] = None
        self._length += 1

    def remove(self, waiter: Waiter) -> None:
        """Removes a waiter. Does nothing if it was removed before."""
        lanes = self._lanes.get(waiter.profile, {})
        lane = lanes.get(waiter.owner)
        if lane is None or waiter not in lane.waiters:
            return
        del lane.waiters[waiter]
        self._length -= 1
        if not lane.waiters:
            # Its entry in the heap is dropped when it comes up.
            del lanes[waiter.owner]
            self._compact(waiter.profile)

    def _compact(self, profile: Profile) -> None:
        """Drops the entries of empty lanes once they are the majority, so that owners that give up again and
        again do not fill the heap.
        """
        heap, lanes = self._turns[profile], self._lanes[profile]
        if not lanes:
            del self._lanes[profile], self._turns[profile]
        elif len(heap) > 2 * len(lanes) + 16:
            heap[:] = [turn for turn in heap if turn.lane.waiters]
            heapq.heapify(heap)

    def serve_owner(self, profile: Profile, owner: str, take: Callable[[Waiter], Runner | None]) -> None:
        """Gives runners to the waiters of one owner as long as `take` returns them."""
        lane = self._lanes.get(profile, {}).get(owner)
        while lane is not None and lane.waiters and self._give(next(iter(lane.waiters)), take):
            pass

    def serve(
        self,
        profile: Profile,
        take: Callable[[Waiter], Runner | None],
        may_skip: Callable[[Waiter], bool],
    ) -> None:
        """Gives runners to owners in the order of their turns as long as `take` returns them.

        `may_skip`: returns True if the next owner may get the runner that `take` refused, because of the
        share of this owner.
        """
        skipped: list[_Turn] = []
        while (turn := self._next(profile)) is not None:
            waiter = next(iter(turn.lane.waiters))
            if self._give(waiter, take):
                continue
            if not may_skip(waiter):
                break
            skipped.append(heapq.heappop(self._turns[profile]))
        for turn in skipped:
            heapq.heappush(self._turns[profile], turn)

    def _give(self, waiter: Waiter, take: Callable[[Waiter], Runner | None]) -> bool:
        """Returns False if `take` refused."""
        if not waiter.future.done():
            runner = take(waiter)
            if runner is None:
                return False
            waiter.future.set_result(runner)
        self.remove(waiter)
        return True

    def _next(self, profile: Profile) -> _Turn | None:
        """Returns the entry of the lane whose turn is next, after correcting outdated entries."""
        heap = self._turns.get(profile, [])
        turns = self._shares.turns(profile)
        while heap:
            turn = heap[0]
            if not turn.lane.waiters:
                heapq.heappop(heap)
            elif (begins := turns.end(turn.lane.owner)) > turn.begins:
                heapq.heapreplace(heap, _Turn(begins, next(self._numbers), turn.lane))
            else:
                return turn
        return None

    def in_order(self, may_take: Callable[[Waiter], bool]) -> Iterator[Waiter]:
        """Yields the waiters of all profiles in the order in which they will get runners. If `may_take`
        returns False, skips the other waiters of that owner and profile.
        """
        plan: list[tuple[float, int, float, Iterator[Waiter]]] = []
        for profile, lanes in self._lanes.items():
            turns = self._shares.turns(profile)
            for turn in self._turns[profile]:
                if lanes.get(turn.lane.owner) is turn.lane:
                    owner = turn.lane.owner
                    begins = max(turn.begins, turns.end(owner))
                    plan.append((begins, turn.number, turns.length(owner), iter(turn.lane.waiters)))
        heapq.heapify(plan)
        while plan:
            begins, number, length, waiters = heapq.heappop(plan)
            waiter = next(waiters, None)
            if waiter is not None and may_take(waiter):
                yield waiter
                heapq.heappush(plan, (begins + length, number, length, waiters))
