"""Shares of owners in a limited number of places."""

from __future__ import annotations

import pytest

from hutch.owner_shares import MAX_OWNERS, OwnerShares, OwnerTurns


def take_all(shares: OwnerShares, owner: str) -> int:
    """Takes as many places as the owner may have. Returns their number."""
    count = 0
    while shares.may_take(owner) and count < 100:
        shares.take(owner)
        count += 1
    return count


@pytest.mark.parametrize(("places", "expected"), [(1, 1), (2, 1), (4, 3), (10, 8), (20, 16)])
def test_one_owner_gets_four_fifths_by_default(places: int, expected: int) -> None:
    assert take_all(OwnerShares(places), "ann") == expected


def test_last_fifth_goes_only_to_owners_without_a_place() -> None:
    shares = OwnerShares(20)
    assert [take_all(shares, owner) for owner in ("ann", "bob", "cyd", "dan", "eve")] == [16, 1, 1, 1, 1]


def test_configured_share_applies_to_each_owner() -> None:
    shares = OwnerShares(20, 6)
    assert [take_all(shares, owner) for owner in ("ann", "bob", "cyd", "dan")] == [6, 6, 4, 1]


def test_owner_that_may_take_everything_leaves_no_reserve() -> None:
    assert take_all(OwnerShares(5, 5), "ann") == 5


def test_returned_place_can_be_taken_again() -> None:
    shares = OwnerShares(5)
    take_all(shares, "ann")
    shares.give_back("ann")
    assert shares.may_take("ann")
    for _ in range(3):
        shares.give_back("ann")
    assert take_all(shares, "bob") == 4


def test_turns_follow_the_weights() -> None:
    turns = OwnerTurns()
    turns.set_weight("ann", 2)
    taken = []
    for _ in range(30):
        owner = min(("ann", "bob"), key=turns.next)
        turns.take(owner)
        taken.append(owner)
    assert abs(taken.count("ann") - 20) <= 1


def test_owner_is_a_newcomer_until_its_turn_and_after_one_and_a_half_rounds() -> None:
    turns = OwnerTurns()
    for owner in ("ann", "bob"):
        turns.take(owner)
    assert turns.is_newcomer("cyd")
    turns.take("cyd")
    assert not turns.is_newcomer("cyd")
    assert turns.next("cyd") > turns.next("dan")
    for owner in ("ann", "bob", "ann", "bob"):
        turns.take(owner)
    assert not turns.is_newcomer("cyd")
    turns.take("ann")
    assert turns.is_newcomer("cyd")


def test_owners_that_never_return_are_forgotten() -> None:
    turns = OwnerTurns()
    for number in range(2 * MAX_OWNERS):
        turns.take(f"owner-{number}")
    for _ in range(4):
        turns.take("ann")
    assert not turns.has_others("ann")


def test_busy_owner_that_is_half_a_round_late_is_no_newcomer() -> None:
    turns = OwnerTurns()
    busy = [f"busy-{number}" for number in range(16)]
    for owner in (*busy, *busy):
        turns.take(owner)
    late, *others = busy
    turns.take(late)
    for owner in (*others, *others[:8]):
        turns.take(owner)
    assert not turns.is_newcomer(late)
    turns.take(others[8])
    assert turns.is_newcomer(late)
