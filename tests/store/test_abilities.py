from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store.made import an_ability, kept_user

from hutch.errors import Taken
from hutch.store import abilities
from hutch.store.rows import now
from hutch.store.store import Store


async def test_ability_comes_back_as_it_was_kept(store: Store) -> None:
    ada = await kept_user(store)
    kept = an_ability(
        ada,
        service_name="api.test",
        description="Gets a user",
        document='{"wrapper_code": "…"}',
        requires_dynamic_headers=True,
    )
    assert await store.abilities.put(kept) == 1
    expected = msgspec.structs.replace(kept, version=1)
    assert await store.abilities.get("get_user", ada.id) == expected
    assert await store.abilities.list(ada.id) == [expected]


async def test_new_version_takes_the_place_and_older_ones_are_kept(store: Store) -> None:
    ada = await kept_user(store)
    first = an_ability(ada, name="one", created_at=now(plus_seconds=-60))
    await store.abilities.put(first)
    assert await store.abilities.put(an_ability(ada, name="two")) == 2
    found = await store.abilities.get("get_user", ada.id)
    assert found is not None
    assert (found.version, found.name, found.created_at) == (2, "two", first.created_at)
    versions = await store.abilities.versions("get_user", ada.id)
    assert [(each.version, each.name) for each in versions] == [(2, "two"), (1, "one")]
    assert await store.abilities.search(ada.id, "one") == []


async def test_ability_is_found_by_its_words_however_many_it_has(store: Store) -> None:
    ada = await kept_user(store)
    for words in ("", *(" ".join(f"w{number}" for number in range(most)) for most in (1, 64, 65, 390))):
        await store.abilities.put(an_ability(ada, "_", name="_", service_name="-", description=words))
        assert await store.abilities.list(ada.id)
        asked = words.rpartition(" ")[2]
        assert len(await store.abilities.search(ada.id, asked)) == (1 if words else 0)


async def test_search_finds_no_more_than_fits_into_memory_and_the_best_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities, "MOST_PAGE_CHARS", 1_000)
    ada = await kept_user(store)
    for number in range(5):
        place = {"name": "walrus"} if number == 4 else {"description": "a walrus"}
        await store.abilities.put(an_ability(ada, f"a{number}", document="x" * 400, **place))
    assert [each.ability_id for each in await store.abilities.search(ada.id, "walrus")] == ["a4", "a0", "a1"]
    assert [each.ability_id for each in await store.abilities.search(ada.id, "walrus", 1)] == ["a4"]


async def test_versions_that_are_put_at_once_get_numbers_of_their_own(store: Store) -> None:
    ada = await kept_user(store)
    numbers = await asyncio.gather(*(store.abilities.put(an_ability(ada, name=f"n{n}")) for n in range(8)))
    assert sorted(numbers) == list(range(1, 9))
    assert len(await store.abilities.versions("get_user", ada.id)) == 8


async def test_what_is_anothers_is_unknown_until_it_is_shared(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    await store.abilities.put(an_ability(ada))
    assert await store.abilities.get("get_user", bob.id) is None
    assert await store.abilities.existing(["get_user"], bob.id) == set()
    assert await store.abilities.list(bob.id, shared=True) == []
    await store.abilities.put(an_ability(ada, shared=True))
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert (found.owner_id, found.shared, found.version) == (ada.id, True, 2)
    assert await store.abilities.existing(["get_user", "none"], bob.id) == {"get_user"}
    assert await store.abilities.list(bob.id, shared=True) == [found]
    assert await store.abilities.list(bob.id) == []
    await store.abilities.put(an_ability(ada, shared=False))
    assert await store.abilities.get("get_user", bob.id) is None


async def test_ones_own_goes_before_a_shared_one_of_the_same_id(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    await store.abilities.put(an_ability(ada, shared=True))
    await store.abilities.put(an_ability(bob, name="mine"))
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert found.name == "mine"
    assert await store.abilities.list(bob.id, shared=True) == [found]


async def test_nobody_shares_what_somebody_else_shares_under_that_id(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    await store.abilities.put(an_ability(ada, shared=True))
    with pytest.raises(Taken, match="'get_user' is shared"):
        await store.abilities.put(an_ability(bob, shared=True))
    assert await store.abilities.list(bob.id) == []
    await store.abilities.remove("get_user", ada.id)
    assert await store.abilities.put(an_ability(bob, shared=True)) == 1


async def test_only_its_owner_removes_it_with_all_versions(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    for _ in range(2):
        await store.abilities.put(an_ability(ada, shared=True))
    assert not await store.abilities.remove("get_user", bob.id)
    assert await store.abilities.remove("get_user", ada.id)
    assert not await store.abilities.remove("get_user", ada.id)
    assert await store.abilities.versions("get_user", ada.id) == []
    assert await store.abilities.put(an_ability(ada)) == 1


async def test_list_goes_page_by_page(store: Store) -> None:
    ada = await kept_user(store)
    for name in ("c", "a", "B", "d"):
        await store.abilities.put(an_ability(ada, name))
    first = await store.abilities.list(ada.id, limit=3)
    assert [each.ability_id for each in first] == ["B", "a", "c"]
    rest = await store.abilities.list(ada.id, limit=3, after="c")
    assert [each.ability_id for each in rest] == ["d"]


async def test_a_page_ends_where_it_becomes_too_large(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.store.abilities.MOST_AT_ONCE", 2)
    monkeypatch.setattr("hutch.store.abilities.MOST_PAGE_CHARS", 300)
    ada = await kept_user(store)
    for name in "abcdefg":
        await store.abilities.put(an_ability(ada, name, document="x" * 100))

    async def page(limit: int, after: str = "") -> tuple[str, bool]:
        found, more = await store.abilities.page(ada.id, limit=limit, after=after)
        return "".join(each.ability_id for each in found), more

    assert await page(100) == ("abcd", True)
    assert await page(100, "d") == ("efg", False)
    assert await page(3) == ("abc", True)
    assert await page(100, "g") == ("", False)


async def found(store: Store, user_id: str, text: str, limit: int = 10) -> list[str]:
    return [each.ability_id for each in await store.abilities.search(user_id, text, limit)]


async def test_search_finds_by_the_words_of_name_id_service_and_description(store: Store) -> None:
    ada = await kept_user(store)
    ability = an_ability(
        ada,
        "getUserByID",
        name="Profil öffnen",
        service_name="api.example.com",
        description="a person's page",
    )
    await store.abilities.put(ability)
    for text in (
        "getUserByID",
        "USER",
        "profil",
        "ÖFFNEN",
        "example",
        "person",
        "Pers",
        "nothing at all user",
    ):
        assert await found(store, ada.id, text) == ["getUserByID"], text
    for text in ("", "!?", "serbyid", "wrapper"):
        assert await found(store, ada.id, text) == [], text


async def test_search_puts_more_words_first_then_better_places(store: Store) -> None:
    ada = await kept_user(store)
    await store.abilities.put(an_ability(ada, "a", name="Post a message", description="needs a login first"))
    await store.abilities.put(an_ability(ada, "b", name="Login", description="gets a session"))
    await store.abilities.put(an_ability(ada, "c", name="Loginpage", service_name="twitter.test"))
    await store.abilities.put(an_ability(ada, "d", name="Login", service_name="twitter.test"))
    assert await found(store, ada.id, "login twitter.test") == ["d", "c", "b", "a"]
    assert await found(store, ada.id, "login twitter.test", limit=2) == ["d", "c"]
    assert await found(store, ada.id, "login", limit=0) == []


async def test_search_sees_ones_own_and_the_shared_ones_only(store: Store) -> None:
    ada, bob = await kept_user(store), await kept_user(store, "bob")
    await store.abilities.put(an_ability(ada, "private"))
    await store.abilities.put(an_ability(ada, "shared", shared=True))
    await store.abilities.put(an_ability(bob, "own"))
    assert await found(store, bob.id, "user") == ["own", "shared"]
    assert await found(store, ada.id, "user") == ["private", "shared"]
    assert await found(store, "*", "user") == ["shared"]


async def test_rare_word_is_found_beside_one_that_more_abilities_have_than_are_looked_at(
    store: Store,
) -> None:
    ada = await kept_user(store)
    for number in range(150):
        await store.abilities.put(an_ability(ada, f"thing{number:03}", name="Common thing"))
    await store.abilities.put(an_ability(ada, "zz", name="Common needle"))
    assert (await found(store, ada.id, "common needle"))[0] == "zz"
    assert len(await found(store, ada.id, "common", limit=1000)) == 100
