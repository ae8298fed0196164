"""Divides a limited number of places among owners, so that no owner can lock out or delay the others."""

from __future__ import annotations

import math
from typing import NamedTuple

# One place in this many is kept for owners that have none, at least one place.
RESERVE_ONE_IN = 5
# Maximum number of owners whose last turn is remembered. Beyond it, all owners start again as equals.
MAX_OWNERS = 10_000


class OwnerShares:
    """Counts the places that each owner has taken.

    An owner may take `per_owner` places. Once only the reserve is left, a fifth of all places, only owners
    that have no place yet may take one.
    """

    def __init__(self, places: int, per_owner: int = 0) -> None:
        """With 0, `per_owner` is everything except the reserve. If one owner may take all places, there is no
        reserve.
        """
        reserve = max(1, places // RESERVE_ONE_IN) if places > 1 else 0
        self.per_owner = min(per_owner, places) if per_owner else places - reserve
        self._unreserved = places - min(reserve, places - self.per_owner)
        self._taken: dict[str, int] = {}
        self._total = 0

    def may_take(self, owner: str, planned: int = 0, planned_total: int = 0) -> bool:
        """Returns True if the owner's share allows one more place. Does not check that a place is free.

        `planned`, `planned_total`: places that this owner and all owners take before.
        """
        taken = self._taken.get(owner, 0) + planned
        return not taken or (taken < self.per_owner and self._total + planned_total < self._unreserved)

    def has_place(self, owner: str) -> bool:
        return owner in self._taken

    def take(self, owner: str) -> None:
        self._taken[owner] = self._taken.get(owner, 0) + 1
        self._total += 1

    def give_back(self, owner: str) -> None:
        self._total -= 1
        left = self._taken[owner] - 1
        if left:
            self._taken[owner] = left
        else:
            del self._taken[owner]


class _LastTurn(NamedTuple):
    end: float
    number: int


class OwnerTurns:
    """Says whose turn is next. Owners take turns in proportion to their weights.

    This is start-time fair queueing: time is counted in turns of an owner with the weight 1, and with the
    weight 2 a turn takes half of that. A turn begins at the end of the owner's previous turn, but at most one
    turn ago. Now is the latest beginning of a turn that was taken. So an owner that was idle comes next,
    once, and saves up nothing more.
    """

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._now = self._forgotten_at = 0.0
        self._count = 0
        self._last: dict[str, _LastTurn] = {}
        """Last turns of the owners that take turns at present."""

    def set_weight(self, owner: str, weight: float) -> None:
        if weight != 1:
            self._weights[owner] = weight
        else:
            self._weights.pop(owner, None)

    def take(self, owner: str) -> None:
        begins = self.next(owner)
        self._now = max(self._now, begins)
        self._count += 1
        self._last[owner] = _LastTurn(begins + self.length(owner), self._count)
        if self._now >= self._forgotten_at + 1 or len(self._last) > MAX_OWNERS:
            self._forget_past()

    def next(self, owner: str) -> float:
        """Returns when the owner's next turn begins. The owner whose turn begins first comes next."""
        return max(self._now - self.length(owner), self.end(owner))

    def end(self, owner: str) -> float:
        """Returns when the owner's last turn ends. Long ago if that was in an earlier round."""
        last = self._last.get(owner)
        return -math.inf if last is None else last.end

    def length(self, owner: str) -> float:
        return 1.0 / self._weights.get(owner, 1.0)

    def is_newcomer(self, owner: str) -> bool:
        """Returns True if a whole round has passed since the owner's last turn: as many turns as there are
        owners that take turns.
        """
        last = self._last.get(owner)
        return last is None or self._count - last.number >= len(self._last)

    def has_others(self, owner: str) -> bool:
        """Returns True if other owners take turns at present."""
        return len(self._last) > (owner in self._last)

    def _forget_past(self) -> None:
        """Forgets turns that ended, once per round, so that it takes a constant time per turn."""
        self._forgotten_at = self._now
        self._last = {owner: last for owner, last in self._last.items() if last.end >= self._now}
        if len(self._last) > MAX_OWNERS:
            self._last = {}
