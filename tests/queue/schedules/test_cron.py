"""Ticks of cron expressions in time zones, also when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from hutch.errors import InvalidInput
from hutch.queue.schedules.cron import next_tick, ticks


def milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def following(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(ticks(cron, zone, milliseconds(after)), count)
    return [datetime.fromtimestamp(tick / 1000, UTC).isoformat()[:16] for tick in found]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # Clocks go from 02:00 to 03:00 on 2027-03-28, so 02:30 does not exist. Its tick is at 03:00.
        (
            "30 2 * * *",
            "2027-03-27T12:00+01:00",
            ["2027-03-28T01:00", "2027-03-29T00:30", "2027-03-30T00:30"],
        ),
        # Clocks go back from 03:00 to 02:00 on 2027-10-31, so 02:30 occurs twice. There is a tick only at the
        # first 02:30.
        (
            "30 2 * * *",
            "2027-10-30T12:00+02:00",
            ["2027-10-31T00:30", "2027-11-01T01:30", "2027-11-02T01:30"],
        ),
        # `*/30` ticks every half hour of real time, also while clocks change.
        (
            "*/30 * * * *",
            "2027-10-31T01:45+02:00",
            ["2027-10-31T00:00", "2027-10-31T00:30", "2027-10-31T01:00", "2027-10-31T01:30"],
        ),
        ("*/30 * * * *", "2027-03-28T01:45+01:00", ["2027-03-28T01:00", "2027-03-28T01:30"]),
        # Ticks at nine on working days. `after` is before the change of clocks, and the ticks are after the
        # change. So the ticks are at 07:00 UTC, as in summer.
        ("0 9 * * 1-5", "2027-03-26T12:00+01:00", ["2027-03-29T07:00", "2027-03-30T07:00"]),
    ],
)
def test_ticks_around_a_change_of_clocks(cron: str, after: str, expected: list[str]) -> None:
    assert following(cron, "Europe/Berlin", after, len(expected)) == expected


def test_clocks_may_change_by_half_an_hour() -> None:
    # Clocks go from 02:00 to 02:30 on 2027-10-03, so 02:15 does not exist. Its tick is at 02:30.
    expected = ["2027-10-02T15:30", "2027-10-03T15:15"]
    assert following("15 2 * * *", "Australia/Lord_Howe", "2027-10-02T12:00+10:30", 2) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        ("every day", "UTC", "cron"),
        ("61 * * * *", "UTC", "cron"),
        ("0 0 31 2 *", "UTC", "cron"),
        ("* " * 200, "UTC", "cron"),
        ("* * * * *", "Mars/Olympus", "timezone"),
        ("* * * * *", "../../etc/passwd", "timezone"),
        ("* * * * *", "", "timezone"),
    ],
)
def test_invalid_expression_names_its_field(cron: str, zone: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: expected"):
        next_tick(cron, zone, 0)
