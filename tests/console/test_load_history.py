"""Samples of the server's load."""

from __future__ import annotations

from hutch.console.load_history import percentile_ms
from hutch.kernel.metrics import BUCKETS


def histogram(**counts: int) -> list[int]:
    values = [0] * (len(BUCKETS) + 1)
    for name, count in counts.items():
        values[int(name.removeprefix("bucket"))] = count
    return values


def test_percentile_of_nothing_is_unknown() -> None:
    assert percentile_ms(histogram(), 0.5, 0.0) is None


def test_percentile_lies_in_the_bucket_of_its_rank() -> None:
    counts = histogram(bucket0=90, bucket5=10)
    low = percentile_ms(counts, 0.5, 60_000)
    high = percentile_ms(counts, 0.95, 60_000)
    assert low is not None
    assert 0 < low <= BUCKETS[0] * 1000
    assert high is not None
    assert BUCKETS[4] * 1000 < high <= BUCKETS[5] * 1000


def test_percentile_beyond_the_last_bound_is_the_last_bound() -> None:
    assert percentile_ms(histogram(**{f"bucket{len(BUCKETS)}": 3}), 0.5, 90_000) == BUCKETS[-1] * 1000


def test_percentile_is_not_above_the_longest_run() -> None:
    assert percentile_ms(histogram(bucket6=1), 0.95, 61.5) == 61.5
