from __future__ import annotations

import asyncio

from hutch.store.models import now
from hutch.store.store import Store


async def test_flow_round_trip_for_its_owner_only(store: Store) -> None:
    stored = await store.flows.put("ada", "deploy", '{"version":"1.0.0"}', now())
    assert (stored.owner, stored.name, stored.version, stored.document) == (
        "ada",
        "deploy",
        1,
        '{"version":"1.0.0"}',
    )
    assert await store.flows.get("ada", "deploy") == stored
    assert await store.flows.get("bob", "deploy") is None
    assert await store.flows.get("ada", "other") is None


async def test_only_a_different_document_makes_a_new_version(store: Store) -> None:
    first = await store.flows.put("ada", "deploy", "1", now(plus_seconds=-9))
    assert await store.flows.put("ada", "deploy", "1", now()) == first
    second = await store.flows.put("ada", "deploy", "2", now())
    assert (second.version, second.created_at) == (2, first.created_at)
    assert second.updated_at > first.updated_at
    assert [(each.version, each.document) for each in await store.flows.versions("ada", "deploy")] == [
        (2, "2"),
        (1, "1"),
    ]


async def test_flows_are_listed_by_name_in_pages(store: Store) -> None:
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


async def test_concurrent_versions_are_all_stored(store: Store) -> None:
    stored = await asyncio.gather(
        *(store.flows.put("ada", "deploy", str(number), now()) for number in range(8))
    )
    assert sorted(each.version for each in stored) == list(range(1, 9))
    versions = {each.version: each.document for each in await store.flows.versions("ada", "deploy")}
    assert versions == {each.version: each.document for each in stored}
