"""Limits on the rate of tool calls, tested with a fake clock, and limits on concurrent tool calls."""

from __future__ import annotations

import contextlib

import pytest

from hutch.errors import Busy, RateLimited
from hutch.http import rate_limit
from hutch.http.rate_limit import CallRateLimit, ConcurrencyLimit


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def seconds_to_wait(rate: CallRateLimit, caller: str = "a") -> int | None:
    """Returns the seconds to wait, or None if the call is allowed."""
    try:
        rate.check(caller)
    except RateLimited as error:
        return int(error.retry_after)
    return None


def test_bucket_empties_and_fills_steadily() -> None:
    clock = Clock()
    rate = CallRateLimit(6, clock)
    assert [seconds_to_wait(rate) for _ in range(7)] == [None] * 6 + [10]
    clock.now += 9.5
    assert seconds_to_wait(rate) == 1
    clock.now += 0.5
    assert seconds_to_wait(rate) is None
    assert seconds_to_wait(rate) == 10
    clock.now += 3_600
    assert [seconds_to_wait(rate) for _ in range(7)] == [None] * 6 + [10]


def test_every_caller_has_a_separate_bucket() -> None:
    rate = CallRateLimit(1, Clock())
    assert [seconds_to_wait(rate, caller) for caller in ("a", "b", "a", "b")] == [None, None, 60, 60]


def test_batch_may_overdraw_and_delays_the_next_call() -> None:
    rate = CallRateLimit(60, Clock())
    rate.check("a")
    rate.charge("a", 69)
    assert seconds_to_wait(rate) == 11


def test_zero_means_no_limit() -> None:
    rate = CallRateLimit(0, Clock())
    rate.charge("a", 5)
    assert [seconds_to_wait(rate) for _ in range(1_000)] == [None] * 1_000


def test_number_of_remembered_callers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MAX_CALLERS", 2)
    rate = CallRateLimit(1, Clock())
    assert [seconds_to_wait(rate, caller) for caller in ("a", "b", "c", "c", "a")] == [
        None,
        None,
        None,
        60,
        None,
    ]


def test_one_caller_cannot_use_up_the_concurrent_calls() -> None:
    limit = ConcurrencyLimit(5)
    with contextlib.ExitStack() as calls:
        for _ in range(4):
            calls.enter_context(limit.acquire("a"))
        with pytest.raises(Busy, match=r"one caller may have 4 of them \(max_tools_per_caller\)"):
            limit.check("a")
        calls.enter_context(limit.acquire("b"))
        with pytest.raises(Busy, match=r"5 tool calls are already running \(max_tools\)"):
            limit.check("c")
    limit.check("a")
