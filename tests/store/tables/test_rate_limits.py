from __future__ import annotations

import asyncio

import pytest
from tests.support import databases

from hutch.settings import Settings
from hutch.store.backends.postgres_counters import PostgresCounters
from hutch.store.store import Store
from hutch.store.tables.rate_limits import MemoryCounters

HOUR = 3600


async def test_hits_over_the_limit_return_a_retry_time(store: Store) -> None:
    assert [await store.rate_limits.hit("ada", 3, HOUR) for _ in range(3)] == [None] * 3
    for _ in range(2):
        wait = await store.rate_limits.hit("ada", 3, HOUR)
        assert wait is not None
        assert 0 <= wait <= HOUR
    assert await store.rate_limits.hit("bob", 3, HOUR) is None


async def test_concurrent_hits_do_not_exceed_the_limit(store: Store) -> None:
    waits = await asyncio.gather(*(store.rate_limits.hit("ada", 10, HOUR) for _ in range(50)))
    assert waits.count(None) == 10


async def test_window_ends(store: Store) -> None:
    assert await store.rate_limits.hit("ada", 1, 1) is None
    async with asyncio.timeout(30):
        while wait := await store.rate_limits.hit("ada", 1, 1):  # noqa: ASYNC110 - waits for the clock
            await asyncio.sleep(wait)


async def test_another_limit_has_its_own_counter(store: Store) -> None:
    assert [await store.rate_limits.hit("ada", 1, HOUR) is None for _ in range(2)] == [True, False]
    assert await store.rate_limits.hit("ada", 2, HOUR) is None


@pytest.mark.parametrize(
    ("seconds_later", "allowed"),
    # At the end of a window of 60 s, all hits of the window count. Half a window later, half of its hits
    # count. After another window, none of them counts.
    [(1, 0), (60, 0), (75, 3), (90, 5), (120, 10)],
)
async def test_previous_window_counts_in_proportion(seconds_later: int, allowed: int) -> None:
    now = 60.0 * 1_000_000
    counters = MemoryCounters(lambda: now)
    for _ in range(10):
        assert await counters.hit("ada", 10, 60) is None
    now += seconds_later
    windows = [await counters.hit("ada", 10, 60) for _ in range(20)]
    assert windows.count(None) == allowed


async def test_retry_time_is_when_the_count_goes_down() -> None:
    now = 60.0 * 1_000_000
    counters = MemoryCounters(lambda: now)
    for _ in range(10):
        assert await counters.hit("ada", 10, 60) is None
    now += 10
    window = await counters.hit("ada", 10, 60)
    assert window is not None
    # All hits are in the current window. The window ends in 50 seconds, and then the next hit is allowed.
    assert window.retry_seconds == 50
    now += 51
    assert await counters.hit("ada", 10, 60) is None
    window = await counters.hit("ada", 10, 60)
    assert window is not None
    # Now the earlier hits are in the previous window. In each tenth of the current window, one of them stops
    # counting.
    assert window.retry_seconds == 5
    now += 5.1
    assert await counters.hit("ada", 10, 60) is None


async def test_expired_memory_counters_are_deleted() -> None:
    now = 0.0
    counters = MemoryCounters(lambda: now)
    await counters.hit("old", 1, 60)
    now += 119
    await counters.hit("new", 1, 60)
    await counters.delete_expired()
    assert len(counters) == 2
    now += 2
    await counters.delete_expired()
    assert len(counters) == 1


async def test_processes_that_share_a_postgres_share_its_counters(postgres: databases.PostgresServer) -> None:
    settings = Settings(database_url=postgres.new_database())
    async with await Store.open(settings) as one, await Store.open(settings) as other:
        waits = [await store.rate_limits.hit("ada", 4, HOUR) for store in (one, other) * 4]
        raced = await asyncio.gather(
            *(store.rate_limits.hit("raced", 10, HOUR) for store in (one, other) * 25)
        )
    assert [wait is None for wait in waits] == [True] * 4 + [False] * 4
    assert raced.count(None) == 10


async def test_expired_postgres_counters_are_deleted(postgres: databases.PostgresServer) -> None:
    async with await Store.open(Settings(database_url=postgres.new_database())) as store:
        for name in ("old", "new"):
            await store.rate_limits.hit(name, 1, HOUR)
        await store._database.write(
            databases.statement("UPDATE rate_limits SET ends_at = 0 WHERE key LIKE '%old%'")
        )
        await PostgresCounters(store._database).delete_expired()
        assert await store._database.read("SELECT key FROM rate_limits") == [(f"new/1/{HOUR}",)]
