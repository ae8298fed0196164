"""The data keys of flows and their runs: replaced while others read and write."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.store.made import a_flow_run

from hutch.errors import VaultError
from hutch.settings import Settings
from hutch.store import seals
from hutch.store.journal import Entry
from hutch.store.rows import now
from hutch.store.store import Store
from hutch.vault import canary, datakeys, keys, rotation
from hutch.vault.datakeys import JOURNAL_KEY
from hutch.vault.journals import open_store
from hutch.vault.vault import Vault

pytestmark = pytest.mark.anyio


async def begun(store: Store, run_id: str) -> None:
    row = a_flow_run(run_id=run_id, inputs=f'"{run_id}"')
    assert await store.journal.add(row)
    assert await store.journal.claim(row, "me", now())
    assert await store.journal.write(run_id, "me", [Entry(1, "1"), Entry(2, "2", "a", "succeeded")])


async def opens(store: Store, *run_ids: str) -> None:
    for run_id in run_ids:
        found = await store.journal.get(run_id)
        assert found is not None
        assert found.inputs == f'"{run_id}"'
        assert [each.body for each in await store.journal.events(run_id)] == ["1"]
        assert await store.journal.steps(run_id) == [("a", "2")]


async def kept(store: Store) -> str:
    text = await store.meta.get(JOURNAL_KEY)
    assert text is not None
    return text


async def test_rotation_keeps_old_runs_open_with_the_new_master_key_alone(
    store: Store, store_settings: Settings
) -> None:
    home = store_settings.home_path
    await begun(store, "old")
    await store.flows.put("ada", "deploy", "{}", now())
    before = await kept(store)
    vault = await Vault.open(store, home, {})
    told: list[str] = []
    vault.master = keys.add(home, {})
    assert (await rotation.rotate(vault, told.append)).flows
    assert told == ["flows: a new key for what comes; 1 older for what is there"]
    assert set(datakeys.master_ids(await kept(store))) == {vault.master.current.id}
    assert set(datakeys.master_ids(before)).isdisjoint({vault.master.current.id})
    # A server that runs meanwhile goes on, and so does what is begun now.
    await opens(store, "old")
    await begun(store, "between")
    file = home / keys.FILE
    file.write_text(file.read_text().splitlines()[0] + "\n")
    async with await open_store(store_settings) as other:
        await opens(other, "old", "between")
        await begun(other, "new")
        assert await other.flows.get("ada", "deploy") is not None
    await opens(store, "old", "between", "new")


async def test_a_running_store_takes_up_new_keys_by_itself(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "old")
    vault = await Vault.open(store, store_settings.home_path, {})
    vault.master = keys.add(store_settings.home_path, {})
    await rotation.rotate(vault)
    first, second = (
        each.id
        for text in datakeys.entries(await kept(store))
        for each in [datakeys.unseal(vault.master, str(text), datakeys.JOURNAL).current]
    )
    await begun(store, "soon")
    assert await store.sealed_with() == {second}
    monkeypatch.setattr(seals, "FRESH_SECONDS", 0.0)
    await begun(store, "later")
    assert await store.sealed_with() == {first, second}
    await opens(store, "old", "soon", "later")


async def test_where_keys_cannot_be_read_again_those_that_were_still_seal(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(store, "old")
    file = store_settings.home_path / keys.FILE
    file.rename(file.with_suffix(".aside"))
    monkeypatch.setattr(seals, "FRESH_SECONDS", 0.0)
    await begun(store, "new")
    assert "There is no master key" in caplog.text
    file.with_suffix(".aside").rename(file)
    await opens(store, "old", "new")


async def test_older_keys_go_once_nothing_is_sealed_with_them_and_nobody_writes_with_them(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "old")
    vault = await Vault.open(store, store_settings.home_path, {})
    for _ in range(2):
        await rotation.rotate(vault)
    # All within the hour in which somebody may be writing with one.
    assert len(datakeys.entries(await kept(store))) == 3
    later = time.time() + datakeys.GRACE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    await rotation.rotate(vault)
    # The first is needed, and the third was replaced just now.
    assert len(datakeys.entries(await kept(store))) == 3
    await opens(store, "old")
    await store._database.write_many("DELETE FROM flow_runs WHERE run_id = :run_id", [{"run_id": "old"}])
    monkeypatch.setattr(time, "time", lambda: later + datakeys.GRACE_SECONDS + 1)
    await rotation.rotate(vault)
    assert len(datakeys.entries(await kept(store))) == 2


async def test_rotations_and_runs_at_the_same_time_lose_nothing(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seals, "FRESH_SECONDS", 0.001)
    await begun(store, "first")
    vault = await Vault.open(store, store_settings.home_path, {})
    rotating = True

    async def write(writer: int) -> list[str]:
        names = list[str]()
        while rotating or not names:
            names.append(f"{writer}-{len(names)}")
            await begun(store, names[-1])
            await opens(store, names[-1], "first")
        return names

    async def rotate() -> None:
        nonlocal rotating
        try:
            await asyncio.gather(*(rotation.rotate(vault) for _ in range(3)))
        finally:
            rotating = False

    written, _ = await asyncio.gather(asyncio.gather(*(write(number) for number in range(3))), rotate())
    async with await open_store(store_settings) as other:
        await opens(other, "first", *(name for names in written for name in names))


async def test_nothing_is_rotated_where_there_are_no_flows(store: Store, store_settings: Settings) -> None:
    vault = await Vault.open(store, store_settings.home_path, {})
    assert not (await rotation.rotate(vault)).flows
    assert await store.meta.get(JOURNAL_KEY) is None


async def test_a_canary_that_is_lost_is_not_made_anew_with_a_wrong_key(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "old")
    await store.meta.remove(canary.KEY)
    monkeypatch.setenv(keys.VARIABLE, keys.generate())
    async with await open_store(store_settings) as other:
        with pytest.raises(VaultError, match="is not the one that this database is sealed with"):
            await other.journal.get("old")
    assert await store.meta.get(canary.KEY) is None
    monkeypatch.delenv(keys.VARIABLE)
    async with await open_store(store_settings) as other:
        await opens(other, "old")
