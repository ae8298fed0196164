from __future__ import annotations

import pytest
from tests.store.made import a_credential, a_flow_run, a_key, a_run, a_user, an_ability, keep_flows, kept_user

from hutch.errors import InvalidText, Taken
from hutch.store.rows import now
from hutch.store.store import Store


async def test_user_is_found_by_name_and_id_as_it_was_kept(store: Store) -> None:
    user = a_user("Ada Lovelace", data_key="v1:sealed")
    await store.users.add(user)
    assert await store.users.by_name("Ada Lovelace") == user
    assert await store.users.by_id(user.id) == user
    assert await store.users.by_name("ada lovelace") is None
    assert await store.users.by_id("nobody") is None


async def test_users_are_listed_by_name_byte_by_byte(store: Store) -> None:
    assert not await store.users.any()
    for name in ("zoë", "Zed", "ada", "Émile", "_x"):
        await kept_user(store, name)
    assert [user.name for user in await store.users.list()] == ["Zed", "_x", "ada", "zoë", "Émile"]
    assert await store.users.any()


async def test_a_name_is_taken_once(store: Store) -> None:
    await kept_user(store)
    with pytest.raises(Taken, match="'ada'"):
        await store.users.add(a_user("ada"))
    assert len(await store.users.list()) == 1


async def test_with_a_user_goes_all_that_is_theirs_but_the_record_of_their_runs(store: Store) -> None:
    await keep_flows(store)
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    for user in (ada, bob):
        await store.keys.add(a_key(user, digest=user.name))
        await store.credentials.put(a_credential(user))
        await store.abilities.put(an_ability(user))
        await store.flows.put(user.id, "deploy", "{}", now())
        await store.journal.add(a_flow_run(user.id))
    run = a_run(ada.id)
    await store.runs.add_many([run])
    assert await store.users.remove(ada.id)
    assert not await store.users.remove(ada.id)
    assert await store.keys.by_digest("ada") is None
    assert await store.credentials.list(ada.id) == []
    assert await store.abilities.list(ada.id) == []
    assert await store.abilities.versions("get_user", ada.id) == []
    assert await store.abilities.search(ada.id, "user") == []
    assert await store.flows.list(ada.id) == await store.flows.versions(ada.id, "deploy") == []
    assert await store.journal.list(ada.id) == []
    assert await store.runs.get(run.run_id) == run
    assert len(await store.flows.list(bob.id)) == len(await store.journal.list(bob.id)) == 1
    assert await store.keys.by_digest("bob") is not None
    assert len(await store.credentials.list(bob.id)) == len(await store.abilities.search(bob.id, "user")) == 1


async def test_data_key_is_replaced_only_by_who_knows_the_one_that_is_there(store: Store) -> None:
    user = await kept_user(store)
    assert await store.users.set_data_key(user.id, "sealed", "new")
    assert not await store.users.set_data_key(user.id, "sealed", "newer")
    found = await store.users.by_id(user.id)
    assert found is not None
    assert found.data_key == "new"


async def test_first_to_state_a_fact_is_believed(store: Store) -> None:
    assert await store.meta.get("canary") is None
    assert await store.meta.put_first("canary", "mine") == "mine"
    assert await store.meta.put_first("canary", "theirs") == "mine"
    assert await store.meta.get("canary") == "mine"
    assert not await store.meta.swap("canary", "theirs", "other")
    assert await store.meta.swap("canary", "mine", "other")
    assert await store.meta.get("canary") == "other"


@pytest.mark.parametrize("text", ["nul\0", "lone \ud800"])
async def test_text_that_no_database_keeps_is_refused_and_found_nowhere(store: Store, text: str) -> None:
    with pytest.raises(InvalidText, match="name: expected text without"):
        await store.users.add(a_user(text))
    ada = await kept_user(store)
    await store.abilities.put(an_ability(ada))
    assert await store.users.by_name(text) is None
    assert await store.keys.by_digest(text) is None
    assert await store.abilities.get(text, ada.id) is None
    assert await store.abilities.search(ada.id, text) == []
    assert await store.abilities.existing([text, "get_user"], ada.id) == {"get_user"}


async def test_every_other_character_comes_back_as_it_was(store: Store) -> None:
    text = "".join(map(chr, range(1, 256))) + "\u2028\ufeff\U0001f600\uffff% %s %(name)s :name ::x '\"\\"
    user = a_user("x", data_key=text)
    await store.users.add(user)
    assert await store.users.by_id(user.id) == user


def test_secrets_do_not_show() -> None:
    user = a_user(data_key="SECRET")
    shown = [user, a_key(user, digest="SECRET"), a_credential(user, sealed="SECRET", hint="SECRET")]
    shown.append(an_ability(user, document="SECRET"))
    assert "SECRET" not in repr(shown)
