"""Counters for metrics: histograms, and a bounded number of owners."""

from __future__ import annotations

from hutch.telemetry.counters import MAX_CANDIDATES, Histogram, OwnerCounters


def counts(owners: OwnerCounters) -> dict[str, int]:
    return {owner: count for owner, ok, count in owners.items() if ok}


def test_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.add(seconds)
    assert histogram.cumulative() == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 7.65


def test_owners_beyond_the_maximum_are_counted_together() -> None:
    owners = OwnerCounters(max_owners=2)
    for owner in ("anna", "ben", "carl", "dora", "anna"):
        owners.add(owner, True)
    owners.add("carl", False)
    assert counts(owners) == {"anna": 2, "ben": 1, "other": 2}
    assert ("other", False, 1) in owners.items()


def test_active_owner_replaces_an_idle_one_and_no_counter_decreases() -> None:
    owners = OwnerCounters(max_owners=2)
    owners.add("anna", True)
    owners.add("ben", True)
    owners.rank()
    for _ in range(3):
        owners.add("carl", True)
        owners.add("anna", True)
    before = counts(owners)
    owners.rank()
    assert before == {"anna": 4, "ben": 1, "other": 3}
    assert counts(owners) == {"anna": 4, "ben": 1, "other": 3}, "two owners were active, and two fit"
    for _ in range(3):
        for owner in ("anna", "carl", "dora"):
            owners.add(owner, True)
    owners.rank()
    assert counts(owners) == {"anna": 7, "other": 9}
    owners.add("carl", True)
    assert counts(owners) == {"anna": 7, "carl": 1, "other": 9}


def test_number_of_remembered_owners_is_bounded() -> None:
    owners = OwnerCounters(max_owners=2)
    for number in range(MAX_CANDIDATES + 500):
        owners.add(f"owner {number}", True)
    owners.rank()
    assert len(counts(owners)) <= 3
    assert sum(counts(owners).values()) == MAX_CANDIDATES + 500
