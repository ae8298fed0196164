"""Divides a limited number of places among owners, so that no owner can lock out or delay the others."""

from __future__ import annotations

import math
from typing import NamedTuple

# The reserve is one place of every RESERVE_ONE_IN, but at least one. Only owners without a place may take
# places of the reserve.
RESERVE_ONE_IN = 5
# Maximum number of owners whose last turn is remembered. If there are more, all turns are forgotten, and all
# owners start again as equals.
MAX_OWNERS = 10_000


class OwnerShares:
    """Counts the places that each owner has taken.

    An owner may take `per_owner` places. A fifth of all places is the reserve. Once all other places are
    taken, only owners that have no place yet may take one.
    """

    def __init__(self, places: int, per_owner: int = 0) -> None:
        """If `per_owner` is 0, an owner may take all places except the reserve. If `per_owner` allows all
        places, there is no reserve.
        """
        reserve = max(1, places // RESERVE_ONE_IN) if places > 1 else 0
        self.per_owner = min(per_owner, places) if per_owner else places - reserve
        self._unreserved = places - min(reserve, places - self.per_owner)
        self._taken: dict[str, int] = {}
        self._total = 0

    def may_take(self, owner: str, planned: int = 0, planned_total: int = 0) -> bool:
        """Returns True if the owner's share allows one more place. Does not check that a place is free.

        `planned` counts the places that this owner is going to take first, `planned_total` those of all
        owners.
        """
        taken = self._taken.get(owner, 0) + planned
        return not taken or (taken < self.per_owner and self._total + planned_total < self._unreserved)

    @property
    def owner_count(self) -> int:
        """Number of owners that have a place."""
        return len(self._taken)

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
    """Decides which owner's turn is next. Owners get turns in proportion to their weights.

    This is start-time fair queueing. Each turn has a start tag and a finish tag, which are points in virtual
    time. The owner whose next turn has the lowest start tag comes first. The finish tag is the start tag plus
    the length of the turn, which is 1 / weight. The virtual time is the highest start tag of all turns that
    were taken. The start tag of an owner's next turn is the finish tag of its last turn, but at least the
    virtual time minus the length of one turn. So an owner that was idle gets one turn before the others, and
    cannot save up more.
    """

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._now = self._forgotten_at = 0.0
        self._count = 0
        self._last: dict[str, _LastTurn] = {}
        """Last turn of each owner that takes turns at present: its finish tag, and how many turns were taken
        until then.
        """

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
        """Returns the start tag of the owner's next turn."""
        return max(self._now - self.length(owner), self.end(owner))

    def end(self, owner: str) -> float:
        """Returns the finish tag of the owner's last turn, or minus infinity if no turn is remembered."""
        last = self._last.get(owner)
        return -math.inf if last is None else last.end

    def length(self, owner: str) -> float:
        return 1.0 / self._weights.get(owner, 1.0)

    def is_newcomer(self, owner: str) -> bool:
        """Returns True if the owner took no turn in the last one and a half rounds. A round has as many turns
        as there are owners that take turns at present.

        One round would not be enough, because executions differ in length: each of 16 busy owners took a turn
        after 11 to 23 other turns, and every eleventh time after more than 16.
        """
        last = self._last.get(owner)
        return last is None or self._count - last.number >= 1.5 * len(self._last)

    def has_others(self, owner: str) -> bool:
        """Returns True if other owners take turns at present."""
        return len(self._last) > (owner in self._last)

    def _forget_past(self) -> None:
        """Forgets turns whose finish tag is more than 1 before the virtual time, or all turns if more than
        MAX_OWNERS remain. Normally called once per unit of virtual time, in which each owner takes about one
        turn, so that the amortised cost per turn is constant.
        """
        self._forgotten_at = self._now
        self._last = {owner: last for owner, last in self._last.items() if last.end >= self._now - 1}
        if len(self._last) > MAX_OWNERS:
            self._last = {}
