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


class _OwnerQueue(msgspec.Struct, eq=False):
    """Executions of one owner that wait for a runner of the same profile, first come, first served."""

    owner: str
    # Use an ordered dict rather than a deque, because a waiter that gives up is removed from any position.
    waiters: OrderedDict[Waiter, None] = msgspec.field(default_factory=OrderedDict)


class _Turn(NamedTuple):
    """Entry of a heap: the start tag of an owner's next turn (see `OwnerTurns`). Of entries with equal start
    tags, the one with the lower number comes first.
    """

    begins: float
    number: int
    queue: _OwnerQueue


class WaitQueue:
    """Waiting executions, with one heap of owners for each profile.

    Adding, removing and serving an execution takes O(log n) time, where n is the number of waiting owners.
    This time does not depend on how many executions of an owner wait.
    """

    def __init__(self, shares: PoolShares) -> None:
        self._shares = shares
        self._queues: dict[Profile, dict[str, _OwnerQueue]] = {}
        self._turns: dict[Profile, list[_Turn]] = {}
        self._numbers = itertools.count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Waiter]:
        return itertools.chain.from_iterable(self.of(profile) for profile in [*self._queues])

    def of(self, profile: Profile) -> list[Waiter]:
        """Returns all waiters of a profile."""
        return [waiter for queue in self._queues.get(profile, {}).values() for waiter in queue.waiters]

    def has(self, profile: Profile, owner: str) -> bool:
        return owner in self._queues.get(profile, ())

    def add(self, waiter: Waiter) -> None:
        queues = self._queues.setdefault(waiter.profile, {})
        queue = queues.get(waiter.owner)
        if queue is None:
            queue = queues[waiter.owner] = _OwnerQueue(waiter.owner)
            begins = self._shares.turns(waiter.profile).next(waiter.owner)
            heap = self._turns.setdefault(waiter.profile, [])
            heapq.heappush(heap, _Turn(begins, next(self._numbers), queue))
        queue.waiters[waiter] = None
        self._length += 1

    def remove(self, waiter: Waiter) -> None:
        """Removes a waiter. Does nothing if it was removed before."""
        queues = self._queues.get(waiter.profile, {})
        queue = queues.get(waiter.owner)
        if queue is None or waiter not in queue.waiters:
            return
        del queue.waiters[waiter]
        self._length -= 1
        if not queue.waiters:
            # Keep the owner's entry in the heap. `_next` drops the entry when the entry comes first.
            del queues[waiter.owner]
            self._compact(waiter.profile)

    def _compact(self, profile: Profile) -> None:
        """Drops the entries of empty queues once they are the majority. Otherwise owners that repeatedly wait
        and give up would fill the heap.
        """
        heap, queues = self._turns[profile], self._queues[profile]
        if not queues:
            del self._queues[profile], self._turns[profile]
        elif len(heap) > 2 * len(queues) + 16:
            heap[:] = [turn for turn in heap if turn.queue.waiters]
            heapq.heapify(heap)

    def serve_owner(self, profile: Profile, owner: str, take: Callable[[Waiter], Runner | None]) -> None:
        """Gives runners to the waiters of one owner as long as `take` returns a runner."""
        queue = self._queues.get(profile, {}).get(owner)
        while queue is not None and queue.waiters and self._give(next(iter(queue.waiters)), take):
            pass

    def serve(
        self,
        profile: Profile,
        take: Callable[[Waiter], Runner | None],
        may_skip: Callable[[Waiter], bool],
    ) -> None:
        """Gives runners to owners in the order of their turns as long as `take` returns a runner.

        `take` returns None if no runner is free for the waiter. `may_skip` then returns True if the reason is
        the share of this waiter's owner, so that a runner may be free for the next owner.
        """
        skipped: list[_Turn] = []
        while (turn := self._next(profile)) is not None:
            waiter = next(iter(turn.queue.waiters))
            if self._give(waiter, take):
                continue
            if not may_skip(waiter):
                break
            skipped.append(heapq.heappop(self._turns[profile]))
        for turn in skipped:
            heapq.heappush(self._turns[profile], turn)

    def _give(self, waiter: Waiter, take: Callable[[Waiter], Runner | None]) -> bool:
        """Returns False if `take` returned no runner."""
        if not waiter.future.done():
            runner = take(waiter)
            if runner is None:
                return False
            waiter.future.set_result(runner)
        self.remove(waiter)
        return True

    def _next(self, profile: Profile) -> _Turn | None:
        """Returns the entry with the lowest start tag. First drops entries of empty queues and corrects
        entries of owners that took a turn meanwhile.
        """
        heap = self._turns.get(profile, [])
        turns = self._shares.turns(profile)
        while heap:
            turn = heap[0]
            if not turn.queue.waiters:
                heapq.heappop(heap)
            elif (begins := turns.end(turn.queue.owner)) > turn.begins:
                heapq.heapreplace(heap, _Turn(begins, next(self._numbers), turn.queue))
            else:
                return turn
        return None

    def in_order(self, may_take: Callable[[Waiter], bool]) -> Iterator[Waiter]:
        """Yields the waiters of all profiles in the order in which they will get runners. If `may_take`
        returns False for a waiter, leaves out this waiter and all later ones of the same owner and profile.
        """
        plan: list[tuple[float, int, float, Iterator[Waiter]]] = []
        for profile, queues in self._queues.items():
            turns = self._shares.turns(profile)
            for turn in self._turns[profile]:
                if queues.get(turn.queue.owner) is turn.queue:
                    owner = turn.queue.owner
                    begins = max(turn.begins, turns.end(owner))
                    plan.append((begins, turn.number, turns.length(owner), iter(turn.queue.waiters)))
        heapq.heapify(plan)
        while plan:
            begins, number, length, waiters = heapq.heappop(plan)
            waiter = next(waiters, None)
            if waiter is not None and may_take(waiter):
                yield waiter
                heapq.heappush(plan, (begins + length, number, length, waiters))
