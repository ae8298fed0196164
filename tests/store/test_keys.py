from __future__ import annotations

import pytest
from tests.store.made import a_key, kept_user

from hutch.errors import Taken
from hutch.store.rows import now
from hutch.store.store import Store


async def test_key_comes_with_whose_it_is(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    key = a_key(ada, "one", scopes=("abilities", "mcp"), expires_at=now(plus_seconds=60))
    await store.keys.add(key)
    await store.keys.add(a_key(bob, "two"))
    assert await store.keys.by_digest("one") == (key, ada)
    assert await store.keys.by_digest("three") is None


async def test_keys_are_listed_by_user(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    first, second = a_key(ada, "1", created_at=now()), a_key(ada, "2", created_at=now(plus_seconds=1))
    for key in (second, first, a_key(bob, "3")):
        await store.keys.add(key)
    assert await store.keys.list(ada.id) == [first, second]
    assert len(await store.keys.list()) == 3


async def test_digest_is_taken_once(store: Store) -> None:
    ada = await kept_user(store)
    await store.keys.add(a_key(ada))
    with pytest.raises(Taken, match="such a key"):
        await store.keys.add(a_key(ada))


async def test_revoked_key_is_still_found_and_keeps_the_time_of_its_first_revocation(store: Store) -> None:
    ada = await kept_user(store)
    key = a_key(ada)
    await store.keys.add(key)
    first = now()
    assert await store.keys.revoke(key.id, first)
    assert await store.keys.revoke(key.id, now(plus_seconds=5))
    found = await store.keys.by_digest(key.digest)
    assert found is not None
    assert found[0].revoked_at == first
    assert not await store.keys.revoke("unknown", first)


async def test_removed_key_is_gone(store: Store) -> None:
    ada = await kept_user(store)
    key = a_key(ada)
    await store.keys.add(key)
    assert await store.keys.remove(key.id)
    assert not await store.keys.remove(key.id)
    assert await store.keys.by_digest(key.digest) is None


async def test_use_of_a_key_is_written_later_and_once_a_minute(store: Store) -> None:
    ada = await kept_user(store)
    key = a_key(ada)
    await store.keys.add(key)
    first = now()
    store.keys.used(key.id, first)
    store.keys.used(key.id, now(plus_seconds=1))
    await store.later.flush()
    store.keys.used(key.id, now(plus_seconds=2))
    await store.later.flush()
    assert [each.last_used_at for each in await store.keys.list(ada.id)] == [first]


async def test_an_older_use_never_takes_the_place_of_a_newer_one(store: Store) -> None:
    ada = await kept_user(store)
    key = a_key(ada)
    await store.keys.add(key)
    newer = now()
    for moment in (newer, now(plus_seconds=-60)):
        store.later.key_used(key.id, moment)
        await store.later.flush()
    assert [each.last_used_at for each in await store.keys.list(ada.id)] == [newer]
