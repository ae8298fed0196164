"""Large results that are kept for later calls."""

from __future__ import annotations

import msgspec
import pytest

from hutch.errors import InvalidExecution
from hutch.kernel.durable.stored_values import StoredValues
from hutch.settings import Settings
from hutch.store.store import Store


def values_of(store: Store, **settings: int) -> StoredValues:
    async def open_store() -> Store:
        return store

    return StoredValues(Settings(**settings), open_store)


async def test_value_belongs_to_its_owner_and_is_encrypted(store: Store) -> None:
    values = values_of(store)
    text = msgspec.json.encode(["a secret", "x" * 600_000])
    name = await values.add("ann", text)
    inputs = await values.inputs("ann", [name])
    assert inputs is not None
    assert msgspec.json.decode(inputs) == {"values": {name: msgspec.json.decode(text)}}
    with pytest.raises(InvalidExecution, match="known values: none"):
        await values.inputs("bo", [name])
    rows = await store._database.scan("SELECT data FROM stored_value_parts")
    assert len(rows) == 3
    assert "a secret" not in str(rows)
    assert await values.inputs("ann", []) is None


async def test_oldest_values_are_deleted_and_values_expire(store: Store) -> None:
    values = values_of(store, max_value_bytes_per_owner=100_000)
    first = await values.add("ann", b'"%s"' % (b"1" * 40_000))
    others = await values.add("bo", b"2")
    second = await values.add("ann", b'"%s"' % (b"3" * 40_000))
    assert await store.stored_values.names("ann") == [second]
    assert await store.stored_values.get("ann", first) is None
    assert await store.stored_values.names("bo") == [others]
    await store.stored_values.delete_expired("9000-01-01T00:00:00.000Z")
    assert await store.stored_values.names("ann") == []
    assert await store._database.scan("SELECT 1 FROM stored_value_parts") == []
