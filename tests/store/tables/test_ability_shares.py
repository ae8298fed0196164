"""Shares with named users and groups: who may use an ability, and which ability takes precedence."""

from __future__ import annotations

from functools import partial

import pytest
from tests.store.factories import add_user, make_ability

from hutch.errors import AlreadyExists, InvalidInput
from hutch.store.models import User
from hutch.store.store import Store
from hutch.store.tables import ability_shares, groups


async def readable(store: Store, user: User) -> tuple[bool, bool, bool, bool]:
    """Returns whether a user can get, list, find and depend on the ability `get_user` of another user. The
    four values are in this order.
    """
    found = await store.abilities.get("get_user", user.id)
    listed = await store.abilities.list(user.id, shared=True)
    searched = await store.abilities.search(user.id, "user")
    existing = await store.abilities.existing(["get_user"], user.id)
    assert await store.abilities.list(user.id) == []
    return found is not None, bool(listed), bool(searched), bool(existing)


NONE, ALL = (False,) * 4, (True,) * 4


async def test_ability_is_shared_with_a_user_until_it_is_revoked(store: Store) -> None:
    ada, bob, eve = [await add_user(store, name) for name in ("ada", "bob", "eve")]
    await store.abilities.put(make_ability(ada))
    assert await readable(store, bob) == NONE
    await store.ability_shares.add("get_user", ada.id, [bob], [])
    await store.ability_shares.add("get_user", ada.id, [bob], [])
    assert await readable(store, bob) == ALL
    assert await readable(store, eve) == NONE
    (share,) = await store.ability_shares.list("get_user", ada.id)
    assert (share.user, share.group) == ("bob", None)
    # A new version of a shared ability is shared, too.
    await store.abilities.put(make_ability(ada, name="Second"))
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert found.version == 2
    assert await store.ability_shares.remove("get_user", ada.id, [bob], []) == 1
    assert await store.ability_shares.remove("get_user", ada.id, [bob], []) == 0
    assert await readable(store, bob) == NONE


async def test_group_shares_with_its_members_only(store: Store) -> None:
    ada, bob, eve = [await add_user(store, name) for name in ("ada", "bob", "eve")]
    group = await store.groups.add("team")
    with pytest.raises(AlreadyExists):
        await store.groups.add("team")
    await store.groups.add_members(group.id, [ada.id, bob.id, bob.id])
    await store.abilities.put(make_ability(ada))
    await store.ability_shares.add("get_user", ada.id, [], [group])
    assert await readable(store, bob) == ALL
    assert await readable(store, eve) == NONE
    assert await store.groups.members(group.id) == ["ada", "bob"]
    assert [each.name for each in await store.groups.of_user(bob.id)] == ["team"]
    assert await store.groups.list() == [(group, 2)]
    assert await store.groups.remove_members(group.id, [bob.id, eve.id]) == 1
    assert await readable(store, bob) == NONE
    await store.groups.add_members(group.id, [bob.id])
    assert await store.groups.remove(group.id)
    assert await readable(store, bob) == NONE
    assert await store.ability_shares.list("get_user", ada.id) == []


async def test_removed_user_and_ability_leave_no_shares(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    group = await store.groups.add("team")
    await store.groups.add_members(group.id, [bob.id])
    for ability_id in ("one", "two"):
        await store.abilities.put(make_ability(ada, ability_id))
        await store.ability_shares.add(ability_id, ada.id, [bob], [group])
    await store.abilities.remove("one", ada.id)
    assert [each.ability_id for each in await store.abilities.list(bob.id, shared=True)] == ["two"]
    await store.users.remove(bob.id)
    assert [each.group for each in await store.ability_shares.list("two", ada.id)] == ["team"]
    assert await store.groups.members(group.id) == []
    await store.users.remove(ada.id)
    assert await store._database.scan("SELECT * FROM ability_shares") == []


async def test_share_cannot_replace_an_ability_that_the_user_runs(store: Store) -> None:
    """Otherwise, another user's code would run with the credentials of this user."""
    ada, bob, eve = [await add_user(store, name) for name in ("ada", "bob", "eve")]

    async def owner() -> str:
        found = await store.abilities.get("get_user", bob.id)
        assert found is not None
        assert [row.owner_id for row in await store.abilities.list(bob.id, shared=True)] == [found.owner_id]
        assert found.owner_id in [row.owner_id for row in await store.abilities.search(bob.id, "get user")]
        return found.owner_id

    await store.abilities.put(make_ability(ada))
    await store.ability_shares.add("get_user", ada.id, [bob], [])
    await store.abilities.put(make_ability(eve))
    await store.ability_shares.add("get_user", eve.id, [bob], [])
    assert await owner() == ada.id
    await store.abilities.put(make_ability(eve, shared=True))
    assert await owner() == eve.id
    await store.abilities.put(make_ability(bob))
    assert await owner() == bob.id


async def test_earlier_share_with_a_group_cannot_replace_what_a_new_member_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([f"2031-01-01T00:00:0{second}.000Z" for second in range(9)])
    monkeypatch.setattr(ability_shares, "now", partial(next, times))
    monkeypatch.setattr(groups, "now", partial(next, times))
    ada, bob, eve = [await add_user(store, name) for name in ("ada", "bob", "eve")]
    group = await store.groups.add("team")
    for author in (eve, ada):
        await store.abilities.put(make_ability(author))
    await store.ability_shares.add("get_user", eve.id, [], [group])
    await store.ability_shares.add("get_user", ada.id, [bob], [])
    await store.groups.add_members(group.id, [bob.id])
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert found.owner_id == ada.id


async def test_number_of_shares_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ability_shares, "MAX_SHARES", 1)
    ada, bob, eve = [await add_user(store, name) for name in ("ada", "bob", "eve")]
    await store.abilities.put(make_ability(ada))
    with pytest.raises(InvalidInput, match="at most 1 users and groups"):
        await store.ability_shares.add("get_user", ada.id, [bob, eve], [])
    assert await store.ability_shares.list("get_user", ada.id) == []
