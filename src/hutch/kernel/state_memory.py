"""Bounds the memory that states of suspended runs and sessions use in the host, in total and for each owner.

A few kilobytes in the store may be the compressed form of a large memory, so the limits of the store do not
bound the memory of the host.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from hutch.errors import Busy
from hutch.owner_shares import RESERVE_ONE_IN


class StateCharge:
    """The memory that one run or session uses, as a part of the total in `StateMemory`."""

    __slots__ = ("_bytes", "_memory", "_owner")

    def __init__(self, memory: StateMemory, owner: str) -> None:
        self._memory = memory
        self._owner = owner
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Adds to the charge. Returns False, and adds nothing, if a limit would be exceeded."""
        if not self._memory.fits(self._owner, size):
            return False
        self.set(self._bytes + size)
        return True

    def set(self, size: int) -> None:
        """Changes the charge, even if that exceeds a limit."""
        change, self._bytes = size - self._bytes, size
        self._memory.change(self._owner, change)

    def release(self) -> None:
        if self._bytes:
            self.set(0)

    def __del__(self) -> None:
        # Release the charge of a run that was taken out of the store and never continued.
        self.release()


class _Waiter(NamedTuple):
    owner: str
    size: int
    future: asyncio.Future[None]


class StateMemory:
    """Counts the bytes of all states in the host. One owner may use four fifths of the limit."""

    def __init__(self, max_bytes: int, max_wait_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_wait_seconds = max_wait_seconds
        self._per_owner = max_bytes - max_bytes // RESERVE_ONE_IN
        self._total = 0
        self._by_owner: dict[str, int] = {}
        self._waiters: deque[_Waiter] = deque()

    @property
    def used_bytes(self) -> int:
        return self._total

    def charge(self, owner: str) -> StateCharge:
        return StateCharge(self, owner)

    def fits(self, owner: str, size: int) -> bool:
        used = self._by_owner.get(owner, 0)
        return used + size <= self._per_owner and self._total + size <= self._max_bytes

    async def reserve(self, owner: str, size: int) -> StateCharge:
        """Waits until there is memory for a state of this size. Call it before reading the state. `size` is a
        maximum: the caller sets the charge to the real size afterwards. Raises Busy.
        """
        size = min(size, self._per_owner)
        if not self.fits(owner, size):
            waiter = _Waiter(owner, size, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(self._max_wait_seconds):
                    await waiter.future
            except TimeoutError:
                raise Busy(
                    "The states of suspended runs and sessions need all memory that they may have"
                    " (max_state_bytes)."
                ) from None
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        charge = self.charge(owner)
        charge.set(size)
        return charge

    def change(self, owner: str, size: int) -> None:
        self._total += size
        used = self._by_owner.get(owner, 0) + size
        if used:
            self._by_owner[owner] = used
        else:
            self._by_owner.pop(owner, None)
        if size < 0:
            self._wake()

    def _wake(self) -> None:
        """Wakes waiters, the oldest first, as long as their states fit into memory together."""
        total, planned = 0, dict[str, int]()
        for owner, size, future in [*self._waiters]:
            own = planned.get(owner, 0)
            used = self._by_owner.get(owner, 0) + own
            if used + size <= self._per_owner and self._total + total + size <= self._max_bytes:
                total += size
                planned[owner] = own + size
                if not future.done():
                    future.set_result(None)
