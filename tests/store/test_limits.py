from __future__ import annotations

import asyncio

from tests import databases

from hutch.settings import Settings
from hutch.store.store import Store

HOUR = 3600


async def test_so_many_are_allowed_and_then_told_when_to_come_back(store: Store) -> None:
    assert [await store.limits.hit("ada", 3, HOUR) for _ in range(3)] == [None] * 3
    for _ in range(2):
        wait = await store.limits.hit("ada", 3, HOUR)
        assert wait is not None
        assert 0 <= wait <= HOUR
    assert await store.limits.hit("bob", 3, HOUR) is None


async def test_of_many_at_once_no_more_than_allowed_get_through(store: Store) -> None:
    found = await asyncio.gather(*(store.limits.hit("ada", 10, HOUR) for _ in range(50)))
    assert found.count(None) == 10


async def test_window_ends(store: Store) -> None:
    assert await store.limits.hit("ada", 1, 1) is None
    async with asyncio.timeout(30):
        while wait := await store.limits.hit("ada", 1, 1):  # noqa: ASYNC110 - time itself is waited for
            await asyncio.sleep(wait)


async def test_processes_that_share_a_postgres_share_its_counts(postgres: databases.Server) -> None:
    settings = Settings(database_url=postgres.new_database())
    async with await Store.open(settings) as one, await Store.open(settings) as other:
        found = [await store.limits.hit("ada", 4, HOUR) for store in (one, other) * 4]
    assert [wait is None for wait in found] == [True] * 4 + [False] * 4


async def test_counts_that_no_longer_matter_are_forgotten(postgres: databases.Server) -> None:
    from hutch.store.counters import Counters

    async with await Store.open(Settings(database_url=postgres.new_database())) as store:
        for name in ("old", "new"):
            await store.limits.hit(name, 1, HOUR)
        await store._database.write(
            databases.statement("UPDATE rate_limits SET ends_at = 0 WHERE key LIKE '%old%'")
        )
        counters = Counters(store._database)
        await counters.forget()
        assert len(await store._database.read("SELECT key FROM rate_limits")) == 1
        assert await counters.check()
        assert await counters.reset() == 1
