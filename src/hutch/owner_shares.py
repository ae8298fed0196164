"""Divides a limited number of places among owners, so that no owner can lock out the others."""

from __future__ import annotations

# One place in this many is kept for owners that have none, at least one place.
RESERVE_ONE_IN = 5


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

    def may_take(self, owner: str) -> bool:
        """Returns True if the owner's share allows one more place. Does not check that a place is free."""
        taken = self._taken.get(owner)
        return not taken or (taken < self.per_owner and self._total < self._unreserved)

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
