from __future__ import annotations

import pytest
from tests.store.factories import (
    add_runs,
    add_user,
    create_flow_key,
    make_ability,
    make_credential,
    make_flow_run,
    make_key,
    make_run,
    make_user,
)

from hutch.errors import AlreadyExists, InvalidText
from hutch.store.models import now
from hutch.store.store import Store


async def test_user_round_trip_by_name_and_id(store: Store) -> None:
    user = make_user("Ada Lovelace", data_key="v1:sealed")
    await store.users.add(user)
    assert await store.users.by_name("Ada Lovelace") == user
    assert await store.users.by_id(user.id) == user
    assert await store.users.by_name("ada lovelace") is None
    assert await store.users.by_id("unknown") is None


async def test_users_are_listed_in_byte_order(store: Store) -> None:
    assert not await store.users.any()
    for name in ("zoë", "Zed", "ada", "Émile", "_x"):
        await add_user(store, name)
    assert [user.name for user in await store.users.list()] == ["Zed", "_x", "ada", "zoë", "Émile"]
    assert await store.users.any()


async def test_duplicate_name_is_rejected(store: Store) -> None:
    await add_user(store)
    with pytest.raises(AlreadyExists, match="'ada'"):
        await store.users.add(make_user("ada"))
    assert len(await store.users.list()) == 1


async def test_removing_a_user_removes_everything_but_run_records(store: Store) -> None:
    await create_flow_key(store)
    ada, bob = await add_user(store), await add_user(store, "bob")
    for user in (ada, bob):
        await store.api_keys.add(make_key(user, digest=user.name))
        await store.credentials.put(make_credential(user))
        await store.abilities.put(make_ability(user))
        await store.flows.put(user.id, "deploy", "{}", now())
        await store.journal.add(make_flow_run(user.id))
    run = make_run(ada.id)
    await add_runs(store, [run])
    assert await store.users.remove(ada.id)
    assert not await store.users.remove(ada.id)
    assert await store.api_keys.by_digest("ada") is None
    assert await store.credentials.list(ada.id) == []
    assert await store.abilities.list(ada.id) == []
    assert await store.abilities.versions("get_user", ada.id) == []
    assert await store.abilities.search(ada.id, "user") == []
    assert await store.flows.list(ada.id) == await store.flows.versions(ada.id, "deploy") == []
    assert await store.journal.list(ada.id) == []
    assert await store.runs.get(run.run_id) == run
    assert len(await store.flows.list(bob.id)) == len(await store.journal.list(bob.id)) == 1
    assert await store.api_keys.by_digest("bob") is not None
    assert len(await store.credentials.list(bob.id)) == len(await store.abilities.search(bob.id, "user")) == 1


async def test_data_key_is_replaced_only_if_unchanged(store: Store) -> None:
    user = await add_user(store)
    assert await store.users.set_data_key(user.id, "sealed", "new")
    assert not await store.users.set_data_key(user.id, "sealed", "newer")
    found = await store.users.by_id(user.id)
    assert found is not None
    assert found.data_key == "new"


async def test_first_stored_meta_value_wins(store: Store) -> None:
    assert await store.meta.get("canary") is None
    assert await store.meta.put_first("canary", "mine") == "mine"
    assert await store.meta.put_first("canary", "theirs") == "mine"
    assert await store.meta.get("canary") == "mine"
    assert not await store.meta.swap("canary", "theirs", "other")
    assert await store.meta.swap("canary", "mine", "other")
    assert await store.meta.get("canary") == "other"


@pytest.mark.parametrize("text", ["nul\0", "lone \ud800"])
async def test_unstorable_text_is_rejected_and_never_found(store: Store, text: str) -> None:
    with pytest.raises(InvalidText, match="name: expected text without"):
        await store.users.add(make_user(text))
    ada = await add_user(store)
    await store.abilities.put(make_ability(ada))
    assert await store.users.by_name(text) is None
    assert await store.api_keys.by_digest(text) is None
    assert await store.abilities.get(text, ada.id) is None
    assert await store.abilities.search(ada.id, text) == []
    assert await store.abilities.existing([text, "get_user"], ada.id) == {"get_user"}


async def test_other_characters_round_trip(store: Store) -> None:
    text = "".join(map(chr, range(1, 256))) + "\u2028\ufeff\U0001f600\uffff% %s %(name)s :name ::x '\"\\"
    user = make_user("x", data_key=text)
    await store.users.add(user)
    assert await store.users.by_id(user.id) == user


def test_repr_contains_no_secrets() -> None:
    user = make_user(data_key="SECRET")
    shown = [user, make_key(user, digest="SECRET"), make_credential(user, sealed="SECRET", hint="SECRET")]
    shown.append(make_ability(user, document="SECRET"))
    assert "SECRET" not in repr(shown)
