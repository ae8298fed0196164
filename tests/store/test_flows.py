from __future__ import annotations

import asyncio

from hutch.store.rows import now
from hutch.store.store import Store


async def test_flow_comes_back_as_it_was_kept_and_to_its_owner_alone(store: Store) -> None:
    kept = await store.flows.put("ada", "deploy", '{"version":"1.0.0"}', now())
    assert (kept.owner, kept.name, kept.version, kept.document) == (
        "ada",
        "deploy",
        1,
        '{"version":"1.0.0"}',
    )
    assert await store.flows.get("ada", "deploy") == kept
    assert await store.flows.get("bob", "deploy") is None
    assert await store.flows.get("ada", "other") is None


async def test_another_document_is_a_new_version_and_the_same_one_is_not(store: Store) -> None:
    first = await store.flows.put("ada", "deploy", "1", now(plus_seconds=-9))
    assert await store.flows.put("ada", "deploy", "1", now()) == first
    second = await store.flows.put("ada", "deploy", "2", now())
    assert (second.version, second.created_at) == (2, first.created_at)
    assert second.updated_at > first.updated_at
    assert [(each.version, each.document) for each in await store.flows.versions("ada", "deploy")] == [
        (2, "2"),
        (1, "1"),
    ]


async def test_flows_are_listed_by_name_page_by_page(store: Store) -> None:
    for name in ("b", "a", "B", "c"):
        await store.flows.put("ada", name, "{}", now())
    await store.flows.put("bob", "x", "{}", now())
    assert [each.name for each in await store.flows.list("ada")] == ["B", "a", "b", "c"]
    assert [each.name for each in await store.flows.list("ada", limit=2, after="B")] == ["a", "b"]


async def test_flow_is_removed_with_its_versions(store: Store) -> None:
    await store.flows.put("ada", "deploy", "1", now())
    await store.flows.put("bob", "deploy", "1", now())
    assert await store.flows.remove("ada", "deploy")
    assert not await store.flows.remove("ada", "deploy")
    assert await store.flows.versions("ada", "deploy") == []
    assert (await store.flows.put("ada", "deploy", "2", now())).version == 1
    assert len(await store.flows.versions("bob", "deploy")) == 1


async def test_versions_that_come_at_the_same_time_are_all_kept(store: Store) -> None:
    kept = await asyncio.gather(
        *(store.flows.put("ada", "deploy", str(number), now()) for number in range(8))
    )
    assert sorted(each.version for each in kept) == list(range(1, 9))
    versions = {each.version: each.document for each in await store.flows.versions("ada", "deploy")}
    assert versions == {each.version: each.document for each in kept}
