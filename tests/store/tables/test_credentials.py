from __future__ import annotations

import asyncio

import msgspec
from tests.store.factories import add_user, make_credential

from hutch.store.models import now
from hutch.store.store import Store


async def test_for_domains_returns_exact_matches_only(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    one, two = make_credential(ada, domain="a.test"), make_credential(ada, domain="b.test")
    for each in (one, two, make_credential(ada, domain="x.a.test"), make_credential(bob, domain="a.test")):
        await store.credentials.put(each)
    assert await store.credentials.for_domains(ada.id, ["b.test", "a.test", "a.test", "none.test"]) == [
        one,
        two,
    ]
    assert await store.credentials.for_domains(ada.id, []) == []
    assert len(await store.credentials.list(ada.id)) == 3


async def test_same_name_in_any_case_is_replaced_and_keeps_id_and_creation_time(store: Store) -> None:
    ada = await add_user(store)
    old = make_credential(ada, "Authorization", sealed="old", hint="1111", created_at=now(plus_seconds=-60))
    assert await store.credentials.put(old) == old.id
    await store.credentials.expire([old.id], now(), "401")
    new = make_credential(ada, "AUTHORIZATION", sealed="new", hint="2222")
    assert await store.credentials.put(new) == old.id
    expected = msgspec.structs.replace(new, id=old.id, created_at=old.created_at)
    assert await store.credentials.list(ada.id) == [expected]


async def test_kinds_domains_and_users_are_separate(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    await store.credentials.put(make_credential(ada, "x"))
    await store.credentials.put(make_credential(ada, "x", kind="cookie"))
    await store.credentials.put(make_credential(ada, "x", domain="other.test"))
    await store.credentials.put(make_credential(bob, "x"))
    assert len(await store.credentials.list(ada.id)) == 3
    assert len(await store.credentials.list(bob.id)) == 1


async def test_credentials_are_removed_by_domain_name_or_kind(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    for user in (ada, bob):
        for key, kind in (("A", "header"), ("B", "header"), ("A", "cookie"), ("C", "cookie")):
            await store.credentials.put(make_credential(user, key, kind=kind))
    await store.credentials.put(make_credential(ada, domain="other.test"))
    assert await store.credentials.remove(ada.id, "api.test", "a", "cookie") == 1
    assert await store.credentials.remove(ada.id, "api.test", "a") == 1
    assert await store.credentials.remove(ada.id, "api.test", kind="cookie") == 1
    assert await store.credentials.remove(ada.id, "api.test") == 1
    assert await store.credentials.remove(ada.id, "api.test") == 0
    assert [each.domain for each in await store.credentials.list(ada.id)] == ["other.test"]
    assert len(await store.credentials.list(bob.id)) == 4


async def test_expired_state_has_time_and_cause_and_can_be_cleared(store: Store) -> None:
    ada = await add_user(store)
    one, two = make_credential(ada, "A"), make_credential(ada, "B")
    for each in (one, two):
        await store.credentials.put(each)
    first = now()
    assert await store.credentials.expire([one.id, "unknown"], first, "401") == 1
    assert await store.credentials.expire([one.id], now(plus_seconds=9), "403") == 0
    marked = (await store.credentials.list(ada.id))[0]
    assert (marked.state, marked.expired_at, marked.cause) == ("expired", first, "401")
    assert await store.credentials.revive([one.id, two.id]) == 1
    assert await store.credentials.list(ada.id) == [one, two]
    assert await store.credentials.expire([], now(), "401") == 0


async def test_only_one_of_several_concurrent_replacements_succeeds(store: Store) -> None:
    ada = await add_user(store)
    one = make_credential(ada, sealed="old")
    await store.credentials.put(one)
    done = await asyncio.gather(
        *(store.credentials.replace_sealed(one.id, "old", f"new {n}") for n in range(8))
    )
    assert sorted(done) == [False] * 7 + [True]
    assert (await store.credentials.list(ada.id))[0].sealed == f"new {done.index(True)}"
    assert (await store.credentials.list(ada.id))[0].updated_at == one.updated_at
