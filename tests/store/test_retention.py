"""Retention clock: a wrong system clock must not cause the deletion of records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hutch.store.retention import RetentionClock
from hutch.store.store import Store
from hutch.text import format_rfc3339

START = datetime(2031, 2, 3, tzinfo=UTC)
HOUR, DAY, YEAR = timedelta(hours=1), timedelta(days=1), timedelta(days=365)


class Server:
    """A server with its own system clock."""

    def __init__(self, store: Store) -> None:
        self.time = START
        self.retention = RetentionClock(store.meta, lambda: self.time)

    async def at(self, time: datetime) -> datetime:
        self.time = time
        return datetime.fromisoformat(await self.retention.now())


async def test_clock_is_followed_while_it_advances_hourly_and_when_it_is_set_back(store: Store) -> None:
    server = Server(store)
    for hours in (0, 1, 2, 20, 3):
        assert await server.at(START + hours * HOUR) == START + hours * HOUR


async def test_jump_ahead_deletes_nothing_and_is_forgotten_when_the_clock_is_right_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(store)
    await server.at(START)
    assert await server.at(START + YEAR) == START
    restarted = Server(store)
    assert await restarted.at(START + YEAR + HOUR) == START
    assert caplog.text.count("the clock jumped from 2031-02-03") == 1
    assert await restarted.at(START + 2 * HOUR) == START + 2 * HOUR


async def test_jump_is_trusted_when_the_clock_has_gone_on_from_there_for_a_day(store: Store) -> None:
    server = Server(store)
    await server.at(START)
    for hours in range(24):
        assert await server.at(START + YEAR + hours * HOUR) == START
    assert await server.at(START + YEAR + DAY) == START + YEAR + DAY


async def test_second_jump_does_not_confirm_the_first(store: Store) -> None:
    server = Server(store)
    await server.at(START)
    assert await server.at(START + YEAR) == START
    assert await server.at(START + 2 * YEAR) == START
    assert await server.at(START + YEAR) == START
    assert await server.at(START + YEAR + 12 * HOUR) == START


async def test_server_with_the_right_time_overrules_one_whose_clock_is_wrong(store: Store) -> None:
    right, wrong = Server(store), Server(store)
    for hours in range(0, 72, 12):
        time = START + hours * HOUR
        assert await right.at(time) == time
        assert await wrong.at(time + YEAR) == time


async def test_offset_is_added_to_the_trusted_time(store: Store) -> None:
    server = Server(store)
    assert await server.retention.now(plus_seconds=-3_600) == format_rfc3339(START - HOUR)
