from __future__ import annotations

import pytest
from tests.store.factories import add_user, make_key

from hutch.errors import AlreadyExists
from hutch.store.models import now
from hutch.store.store import Store


async def test_key_is_found_with_its_user(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    key = make_key(ada, "one", scopes=("abilities", "mcp"), expires_at=now(plus_seconds=60))
    await store.api_keys.add(key)
    await store.api_keys.add(make_key(bob, "two"))
    assert await store.api_keys.by_digest("one") == (key, ada)
    assert await store.api_keys.by_digest("three") is None


async def test_keys_are_listed_by_user(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    first, second = make_key(ada, "1", created_at=now()), make_key(ada, "2", created_at=now(plus_seconds=1))
    for key in (second, first, make_key(bob, "3")):
        await store.api_keys.add(key)
    assert await store.api_keys.list(ada.id) == [first, second]
    assert len(await store.api_keys.list()) == 3


async def test_duplicate_digest_is_rejected(store: Store) -> None:
    ada = await add_user(store)
    await store.api_keys.add(make_key(ada))
    with pytest.raises(AlreadyExists, match="already exists"):
        await store.api_keys.add(make_key(ada))


async def test_revoked_key_is_found_and_keeps_its_first_revocation_time(store: Store) -> None:
    ada = await add_user(store)
    key = make_key(ada)
    await store.api_keys.add(key)
    first = now()
    assert await store.api_keys.revoke(key.id, first)
    assert await store.api_keys.revoke(key.id, now(plus_seconds=5))
    found = await store.api_keys.by_digest(key.digest)
    assert found is not None
    assert found[0].revoked_at == first
    assert not await store.api_keys.revoke("unknown", first)


async def test_removed_key_is_not_found(store: Store) -> None:
    ada = await add_user(store)
    key = make_key(ada)
    await store.api_keys.add(key)
    assert await store.api_keys.remove(key.id)
    assert not await store.api_keys.remove(key.id)
    assert await store.api_keys.by_digest(key.digest) is None


async def test_key_use_is_queued_and_recorded_once_a_minute(store: Store) -> None:
    ada = await add_user(store)
    key = make_key(ada)
    await store.api_keys.add(key)
    first = now()
    store.api_keys.record_use(key.id, first)
    store.api_keys.record_use(key.id, now(plus_seconds=1))
    await store.write_behind.flush()
    store.api_keys.record_use(key.id, now(plus_seconds=2))
    await store.write_behind.flush()
    assert [each.last_used_at for each in await store.api_keys.list(ada.id)] == [first]


async def test_older_use_never_replaces_a_newer_one(store: Store) -> None:
    ada = await add_user(store)
    key = make_key(ada)
    await store.api_keys.add(key)
    newer = now()
    for moment in (newer, now(plus_seconds=-60)):
        store.write_behind.add_key_use(key.id, moment)
        await store.write_behind.flush()
    assert [each.last_used_at for each in await store.api_keys.list(ada.id)] == [newer]
