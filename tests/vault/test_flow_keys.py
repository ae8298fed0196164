"""Rotation of the data keys of flows while other processes read and write."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.store.factories import make_flow_run

from hutch.errors import VaultError
from hutch.settings import Settings
from hutch.store import encryption
from hutch.store.models import now
from hutch.store.store import Store
from hutch.store.tables.journal import JournalEntry
from hutch.vault import crypto, data_keys, master_key_check, rotation
from hutch.vault.data_keys import FLOWS_META_KEY
from hutch.vault.flow_keys import PIECE_BYTES, FlowCipher, open_store
from hutch.vault.vault import Vault

pytestmark = pytest.mark.anyio


async def add_run(store: Store, run_id: str) -> None:
    row = make_flow_run(run_id=run_id, inputs=f'"{run_id}"')
    assert await store.journal.add(row)
    assert await store.journal.claim(row, "me", now())
    assert await store.journal.write(
        run_id, "me", [JournalEntry(1, "1"), JournalEntry(2, "2", "a", "succeeded")]
    )


async def check_runs(store: Store, *run_ids: str) -> None:
    for run_id in run_ids:
        found = await store.journal.get(run_id)
        assert found is not None
        assert found.inputs == f'"{run_id}"'
        assert [each.body for each in await store.journal.events(run_id)] == ["1"]
        assert await store.journal.steps(run_id) == [("a", "2")]


async def stored_keys(store: Store) -> str:
    text = await store.meta.get(FLOWS_META_KEY)
    assert text is not None
    return text


async def test_old_runs_are_readable_with_the_new_master_key_alone(
    store: Store, store_settings: Settings
) -> None:
    home = store_settings.home_path
    await add_run(store, "old")
    await store.flows.put("ada", "deploy", "{}", now())
    before = await stored_keys(store)
    vault = await Vault.open(store, home, {})
    messages: list[str] = []
    vault.master = crypto.add_master_key(home, {})
    assert (await rotation.rotate(vault, messages.append)).flows
    assert messages == ["flows: a new key for new data; older keys still in use: 1"]
    assert set(data_keys.master_key_ids(await stored_keys(store))) == {vault.master.current.id}
    assert set(data_keys.master_key_ids(before)).isdisjoint({vault.master.current.id})
    # The store was opened before the rotation. It continues to work, also for new runs.
    await check_runs(store, "old")
    await add_run(store, "between")
    file = home / crypto.MASTER_KEY_FILE
    file.write_text(file.read_text().splitlines()[0] + "\n")
    async with await open_store(store_settings) as other:
        await check_runs(other, "old", "between")
        await add_run(other, "new")
        assert await other.flows.get("ada", "deploy") is not None
    await check_runs(store, "old", "between", "new")


async def test_running_store_loads_new_keys_by_itself(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_run(store, "old")
    vault = await Vault.open(store, store_settings.home_path, {})
    vault.master = crypto.add_master_key(store_settings.home_path, {})
    await rotation.rotate(vault)
    first, second = (
        each.id
        for text in data_keys.parse_entries(await stored_keys(store))
        for each in [data_keys.decrypt_data_keys(vault.master, str(text), data_keys.FLOWS_OWNER).current]
    )
    await add_run(store, "soon")
    assert await store.data_key_ids() == {second}
    monkeypatch.setattr(encryption, "RELOAD_SECONDS", 0.0)
    await add_run(store, "later")
    assert await store.data_key_ids() == {first, second}
    await check_runs(store, "old", "soon", "later")


async def test_current_keys_are_used_if_reloading_fails(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await add_run(store, "old")
    file = store_settings.home_path / crypto.MASTER_KEY_FILE
    file.rename(file.with_suffix(".aside"))
    monkeypatch.setattr(encryption, "RELOAD_SECONDS", 0.0)
    await add_run(store, "new")
    assert "There is no master key" in caplog.text
    file.with_suffix(".aside").rename(file)
    await check_runs(store, "old", "new")


async def test_older_keys_are_dropped_when_unused_and_past_the_grace_period(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_run(store, "old")
    vault = await Vault.open(store, store_settings.home_path, {})
    for _ in range(2):
        await rotation.rotate(vault)
    # Both replaced keys are kept, because their grace period has not ended.
    assert len(data_keys.parse_entries(await stored_keys(store))) == 3
    later = time.time() + data_keys.GRACE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    await rotation.rotate(vault)
    # Only the second key was dropped. The run "old" needs the first key, and the third key was replaced just
    # now.
    assert len(data_keys.parse_entries(await stored_keys(store))) == 3
    await check_runs(store, "old")
    await store._database.write_many("DELETE FROM flow_runs WHERE run_id = :run_id", [{"run_id": "old"}])
    monkeypatch.setattr(time, "time", lambda: later + data_keys.GRACE_SECONDS + 1)
    await rotation.rotate(vault)
    assert len(data_keys.parse_entries(await stored_keys(store))) == 2


async def test_concurrent_rotations_and_runs_lose_nothing(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "RELOAD_SECONDS", 0.001)
    await add_run(store, "first")
    vault = await Vault.open(store, store_settings.home_path, {})
    rotating = True

    async def write(writer: int) -> list[str]:
        names = list[str]()
        while rotating or not names:
            names.append(f"{writer}-{len(names)}")
            await add_run(store, names[-1])
            await check_runs(store, names[-1], "first")
        return names

    async def rotate() -> None:
        nonlocal rotating
        try:
            await asyncio.gather(*(rotation.rotate(vault) for _ in range(3)))
        finally:
            rotating = False

    written, _ = await asyncio.gather(asyncio.gather(*(write(number) for number in range(3))), rotate())
    async with await open_store(store_settings) as other:
        await check_runs(other, "first", *(name for names in written for name in names))


async def test_nothing_is_rotated_without_flows(store: Store, store_settings: Settings) -> None:
    vault = await Vault.open(store, store_settings.home_path, {})
    assert not (await rotation.rotate(vault)).flows
    assert await store.meta.get(FLOWS_META_KEY) is None


async def test_lost_check_value_is_not_recreated_with_a_wrong_key(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_run(store, "old")
    await store.meta.remove(master_key_check.META_KEY)
    monkeypatch.setenv(crypto.MASTER_KEY_VARIABLE, crypto.generate_master_key())
    async with await open_store(store_settings) as other:
        with pytest.raises(VaultError, match="is not the one that this database is encrypted with"):
            await other.journal.get("old")
    assert await store.meta.get(master_key_check.META_KEY) is None
    monkeypatch.delenv(crypto.MASTER_KEY_VARIABLE)
    async with await open_store(store_settings) as other:
        await check_runs(other, "old")


def test_pieces_of_long_data_cannot_be_moved_or_left_out() -> None:
    master = crypto.MasterKeys([crypto.MasterKey(b"k" * 32)])
    keys = data_keys.decrypt_data_keys(master, data_keys.create_data_key(master, "flows"), "flows")
    cipher = FlowCipher(keys)
    data = b"ab" * PIECE_BYTES
    text = cipher.encrypt_bytes(data, "row")
    assert cipher.decrypt_bytes(text, "row") == data
    first, second, *_ = pieces = text.split("\n")
    other = cipher.encrypt_bytes(data, "other row").split("\n")
    for altered in (
        pieces[:1],
        pieces[1:],
        [second, first],
        [first, first],
        [first, other[1]],
        [*pieces, first],
    ):
        with pytest.raises(VaultError):
            cipher.decrypt_bytes("\n".join(altered), "row")
