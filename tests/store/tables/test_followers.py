from __future__ import annotations

from hutch.settings import Settings
from hutch.store.tables.queue.followers import MAX_UNREAD, FollowedEvents, Follower
from hutch.vault.flow_keys import open_store


async def test_events_wait_for_their_follower_in_order(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        table = store.followers
        await table.add(Follower("f1", "run", 2, 1), 60_000)
        await table.add(Follower("f2", "run", 0), 60_000)
        assert {follower.id: follower.offset for follower in await table.list()} == {"f1": 1, "f2": 0}
        for part in range(MAX_UNREAD):
            assert await table.put("f1", FollowedEvents(part, part + 3, b"data", False))
        assert not await table.put("f1", FollowedEvents(MAX_UNREAD, 99, b"data", True)), "too many unread"
        assert not await table.put("unknown", FollowedEvents(0, 1, b"data", False))
        taken = await table.take(["f1", "f2"])
        assert [(id, events.part) for id, events in taken] == [("f1", part) for part in range(MAX_UNREAD)]
        assert taken[0][1] == FollowedEvents(0, 3, b"data", False)
        assert await table.take(["f1"]) == []
        assert await table.put("f1", FollowedEvents(MAX_UNREAD, 99, b"data", True))


async def test_followers_that_left_or_expired_are_deleted_with_their_events(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        table = store.followers
        for id, life_ms in (("left", 60_000), ("dead", -1), ("alive", -1)):
            await table.add(Follower(id, "run", 0), life_ms)
            assert await table.put(id, FollowedEvents(0, 1, b"data", False))
        await table.renew(["alive"], 60_000)
        await table.remove(["left"])
        await table.delete_expired()
        assert [follower.id for follower in await table.list()] == ["alive"]
        assert [id for id, _ in await table.take(["left", "dead", "alive"])] == ["alive"]
