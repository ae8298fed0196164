"""How many calls a minute: buckets, with a clock that stands still until it is told."""

from __future__ import annotations

import pytest

from hutch.doors.tpmjs import admission
from hutch.doors.tpmjs.admission import Rate
from hutch.doors.tpmjs.answers import Failed


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def refused(rate: Rate, who: str = "a") -> int | None:
    """After how many seconds to come back, or None when one may come now."""
    try:
        rate.check(who)
    except Failed as failure:
        return int((failure.headers or {})["Retry-After"])
    return None


def test_bucket_empties_and_fills_steadily() -> None:
    clock = Clock()
    rate = Rate(6, clock)
    assert [refused(rate) for _ in range(7)] == [None] * 6 + [10]
    clock.now += 9.5
    assert refused(rate) == 1
    clock.now += 0.5
    assert refused(rate) is None
    assert refused(rate) == 10
    clock.now += 3_600
    assert [refused(rate) for _ in range(7)] == [None] * 6 + [10]


def test_everybody_has_a_bucket_of_their_own() -> None:
    rate = Rate(1, Clock())
    assert [refused(rate, who) for who in ("a", "b", "a", "b")] == [None, None, 60, 60]


def test_batch_may_overdraw_and_is_waited_for_the_longer() -> None:
    rate = Rate(60, Clock())
    rate.check("a")
    rate.count("a", 69)
    assert refused(rate) == 11


def test_without_a_limit_nobody_is_counted() -> None:
    rate = Rate(0, Clock())
    rate.count("a", 5)
    assert [refused(rate) for _ in range(1_000)] == [None] * 1_000


def test_callers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MAX_CALLERS", 2)
    rate = Rate(1, Clock())
    assert [refused(rate, who) for who in ("a", "b", "c", "c", "a")] == [None, None, None, 60, None]
