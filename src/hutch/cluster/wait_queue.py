"""Executions of a front that wait for a free place. Owners take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from hutch.cluster.messages import PLACE_KINDS, PlaceKind
from hutch.errors import Busy, RateLimited
from hutch.owner_shares import OwnerShares, OwnerTurns
from hutch.sandbox.pool.stats import retry_after
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.cluster.membership import KnownWorker

# Maximum number of owners that a search skips because no machine has a place for their next execution.
MAX_BLOCKED = 8


class PlaceWaiter(msgspec.Struct, eq=False):
    kind: PlaceKind
    owner: str
    try_choose: Callable[[], tuple[KnownWorker | None] | None]
    """Takes a place. Returns a tuple that contains the worker, or None to use the front itself. Returns None
    instead of a tuple if there is no free place.
    """
    future: asyncio.Future[KnownWorker | None] | None = None


class PlaceQueue:
    """Waiting executions by kind of place and owner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shares = OwnerShares(settings.max_queue, settings.max_queue_per_owner)
        self._turns = {kind: OwnerTurns() for kind in PLACE_KINDS}
        self._waiters: dict[PlaceKind, dict[str, OrderedDict[PlaceWaiter, None]]] = {
            kind: {} for kind in PLACE_KINDS
        }
        self._count = 0

    def waiting(self, kind: PlaceKind) -> int:
        return sum(len(waiters) for waiters in self._waiters[kind].values())

    def has(self, kind: PlaceKind, owner: str) -> bool:
        return owner in self._waiters[kind]

    async def wait(self, waiter: PlaceWaiter, reason: str) -> KnownWorker | None:
        """Waits for a place. Raises Busy with `reason` after `queue_seconds`."""
        settings = self._settings
        if self._count >= settings.max_queue:
            raise Busy(f"{reason} {self._count} executions are waiting already (max_queue).")
        if not self._shares.may_take(waiter.owner):
            raise RateLimited(
                "Too many of your executions are waiting already: one owner may have"
                f" {self._shares.per_owner} of them (max_queue_per_owner).",
                retry_after=retry_after(self._count),
                limit="max_queue_per_owner",
            )
        future: asyncio.Future[KnownWorker | None] = asyncio.get_running_loop().create_future()
        waiter.future = future
        self._waiters[waiter.kind].setdefault(waiter.owner, OrderedDict())[waiter] = None
        self._count += 1
        self._shares.take(waiter.owner)
        try:
            async with asyncio.timeout(settings.queue_seconds):
                return await asyncio.shield(future)
        except TimeoutError:
            if future.done():
                return future.result()
            message = f"{reason} None became free within {settings.queue_seconds:g} s."
            raise Busy(message, retry_after=retry_after(self._count)) from None
        finally:
            self._count -= 1
            self._shares.give_back(waiter.owner)
            self._remove(waiter)

    def _remove(self, waiter: PlaceWaiter) -> None:
        owners = self._waiters[waiter.kind]
        waiters = owners.get(waiter.owner)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del owners[waiter.owner]

    def serve(self) -> None:
        """Gives free places to waiting executions, in the order of their owners' turns."""
        for kind, owners in self._waiters.items():
            turns = self._turns[kind]
            blocked: set[str] = set()
            while len(blocked) < MAX_BLOCKED and (candidates := owners.keys() - blocked):
                owner = min(candidates, key=lambda owner: (turns.next(owner), turns.end(owner)))
                waiter = next(iter(owners[owner]))
                found = waiter.try_choose()
                if found is None:
                    # Try the next owner, whose execution may need another engine.
                    blocked.add(owner)
                    continue
                turns.take(owner)
                self._remove(waiter)
                assert waiter.future is not None
                waiter.future.set_result(found[0])
