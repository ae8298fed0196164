from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store.factories import add_user, make_ability

from hutch.errors import AlreadyExists
from hutch.store.models import now
from hutch.store.store import Store
from hutch.store.tables import abilities


async def test_ability_round_trip(store: Store) -> None:
    ada = await add_user(store)
    ability = make_ability(
        ada,
        service_name="api.test",
        description="Gets a user",
        document='{"wrapper_code": "…"}',
        requires_dynamic_headers=True,
    )
    assert await store.abilities.put(ability) == 1
    expected = msgspec.structs.replace(ability, version=1)
    assert await store.abilities.get("get_user", ada.id) == expected
    assert await store.abilities.list(ada.id) == [expected]


async def test_new_version_replaces_the_current_one_and_older_versions_stay(store: Store) -> None:
    ada = await add_user(store)
    first = make_ability(ada, name="one", created_at=now(plus_seconds=-60))
    await store.abilities.put(first)
    assert await store.abilities.put(make_ability(ada, name="two")) == 2
    found = await store.abilities.get("get_user", ada.id)
    assert found is not None
    assert (found.version, found.name, found.created_at) == (2, "two", first.created_at)
    versions = await store.abilities.versions("get_user", ada.id)
    assert [(each.version, each.name) for each in versions] == [(2, "two"), (1, "one")]
    assert await store.abilities.search(ada.id, "one") == []


async def test_ability_is_found_by_any_number_of_words(store: Store) -> None:
    ada = await add_user(store)
    for words in ("", *(" ".join(f"w{number}" for number in range(count)) for count in (1, 64, 65, 390))):
        await store.abilities.put(make_ability(ada, "_", name="_", service_name="-", description=words))
        assert await store.abilities.list(ada.id)
        last_word = words.rpartition(" ")[2]
        assert len(await store.abilities.search(ada.id, last_word)) == (1 if words else 0)


async def test_search_results_are_bounded_by_size_and_best_match_comes_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities, "MAX_PAGE_CHARS", 1_000)
    ada = await add_user(store)
    for number in range(5):
        fields = {"name": "walrus"} if number == 4 else {"description": "a walrus"}
        await store.abilities.put(make_ability(ada, f"a{number}", document="x" * 400, **fields))
    assert [each.ability_id for each in await store.abilities.search(ada.id, "walrus")] == ["a4", "a0", "a1"]
    assert [each.ability_id for each in await store.abilities.search(ada.id, "walrus", 1)] == ["a4"]


async def test_concurrent_versions_get_distinct_numbers(store: Store) -> None:
    ada = await add_user(store)
    numbers = await asyncio.gather(*(store.abilities.put(make_ability(ada, name=f"n{n}")) for n in range(8)))
    assert sorted(numbers) == list(range(1, 9))
    assert len(await store.abilities.versions("get_user", ada.id)) == 8


async def test_ability_of_another_user_is_hidden_until_it_is_shared(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    await store.abilities.put(make_ability(ada))
    assert await store.abilities.get("get_user", bob.id) is None
    assert await store.abilities.existing(["get_user"], bob.id) == set()
    assert await store.abilities.list(bob.id, shared=True) == []
    await store.abilities.put(make_ability(ada, shared=True))
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert (found.owner_id, found.shared, found.version) == (ada.id, True, 2)
    assert await store.abilities.existing(["get_user", "none"], bob.id) == {"get_user"}
    assert await store.abilities.list(bob.id, shared=True) == [found]
    assert await store.abilities.list(bob.id) == []
    await store.abilities.put(make_ability(ada, shared=False))
    assert await store.abilities.get("get_user", bob.id) is None


async def test_own_ability_hides_a_shared_one_with_the_same_id(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    await store.abilities.put(make_ability(ada, shared=True))
    await store.abilities.put(make_ability(bob, name="mine"))
    found = await store.abilities.get("get_user", bob.id)
    assert found is not None
    assert found.name == "mine"
    assert await store.abilities.list(bob.id, shared=True) == [found]


async def test_shared_id_cannot_be_shared_by_another_user(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    await store.abilities.put(make_ability(ada, shared=True))
    with pytest.raises(AlreadyExists, match="Another user already shares an ability 'get_user'"):
        await store.abilities.put(make_ability(bob, shared=True))
    assert await store.abilities.list(bob.id) == []
    await store.abilities.remove("get_user", ada.id)
    assert await store.abilities.put(make_ability(bob, shared=True)) == 1


async def test_only_the_owner_removes_an_ability_with_all_versions(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    for _ in range(2):
        await store.abilities.put(make_ability(ada, shared=True))
    assert not await store.abilities.remove("get_user", bob.id)
    assert await store.abilities.remove("get_user", ada.id)
    assert not await store.abilities.remove("get_user", ada.id)
    assert await store.abilities.versions("get_user", ada.id) == []
    assert await store.abilities.put(make_ability(ada)) == 1


async def test_list_is_paged(store: Store) -> None:
    ada = await add_user(store)
    for name in ("c", "a", "B", "d"):
        await store.abilities.put(make_ability(ada, name))
    first = await store.abilities.list(ada.id, limit=3)
    assert [each.ability_id for each in first] == ["B", "a", "c"]
    rest = await store.abilities.list(ada.id, limit=3, after="c")
    assert [each.ability_id for each in rest] == ["d"]


async def test_page_is_bounded_by_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.store.tables.abilities.MAX_QUERY_ROWS", 2)
    monkeypatch.setattr("hutch.store.tables.abilities.MAX_PAGE_CHARS", 300)
    ada = await add_user(store)
    for name in "abcdefg":
        await store.abilities.put(make_ability(ada, name, document="x" * 100))

    async def page(limit: int, after: str = "") -> tuple[str, bool]:
        found, more = await store.abilities.page(ada.id, limit=limit, after=after)
        return "".join(each.ability_id for each in found), more

    assert await page(100) == ("abcd", True)
    assert await page(100, "d") == ("efg", False)
    assert await page(3) == ("abc", True)
    assert await page(100, "g") == ("", False)


async def found(store: Store, user_id: str, text: str, limit: int = 10) -> list[str]:
    return [each.ability_id for each in await store.abilities.search(user_id, text, limit)]


async def test_search_covers_name_id_service_and_description(store: Store) -> None:
    ada = await add_user(store)
    ability = make_ability(
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


async def test_search_ranks_by_matched_words_then_by_field(store: Store) -> None:
    ada = await add_user(store)
    await store.abilities.put(
        make_ability(ada, "a", name="Post a message", description="needs a login first")
    )
    await store.abilities.put(make_ability(ada, "b", name="Login", description="gets a session"))
    await store.abilities.put(make_ability(ada, "c", name="Loginpage", service_name="twitter.test"))
    await store.abilities.put(make_ability(ada, "d", name="Login", service_name="twitter.test"))
    assert await found(store, ada.id, "login twitter.test") == ["d", "c", "b", "a"]
    assert await found(store, ada.id, "login twitter.test", limit=2) == ["d", "c"]
    assert await found(store, ada.id, "login", limit=0) == []


async def test_search_returns_own_and_shared_abilities_only(store: Store) -> None:
    ada, bob = await add_user(store), await add_user(store, "bob")
    await store.abilities.put(make_ability(ada, "private"))
    await store.abilities.put(make_ability(ada, "shared", shared=True))
    await store.abilities.put(make_ability(bob, "own"))
    assert await found(store, bob.id, "user") == ["own", "shared"]
    assert await found(store, ada.id, "user") == ["private", "shared"]
    assert await found(store, "*", "user") == ["shared"]


async def test_rare_word_is_found_beside_a_word_with_too_many_candidates(
    store: Store,
) -> None:
    ada = await add_user(store)
    for number in range(150):
        await store.abilities.put(make_ability(ada, f"thing{number:03}", name="Common thing"))
    await store.abilities.put(make_ability(ada, "zz", name="Common needle"))
    assert (await found(store, ada.id, "common needle"))[0] == "zz"
    assert len(await found(store, ada.id, "common", limit=1000)) == 100
