"""Keys are replaced while others read and write."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec
import pytest
from tests.processes import PATIENCE
from tests.vault.inspecting import execute

from hutch.errors import VaultError
from hutch.settings import Settings
from hutch.store.credentials import Credentials
from hutch.store.rows import User
from hutch.store.store import Store
from hutch.vault import canary, datakeys, keys, rotation, sealing
from hutch.vault.keys import MasterKey, MasterKeys
from hutch.vault.vault import Vault

pytestmark = pytest.mark.anyio

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
HOST = "api.example.com"
READER = Path(__file__).with_name("reader.py")
KEPT = {f"key-{number}": f"value {number}" for number in range(20)}


async def filled(vault: Vault, name: str = "bo") -> User:
    user = await vault.add_user(name)
    for key, value in KEPT.items():
        await vault.put_credential(user, HOST, "header", key, value)
    return user


async def opened(vault: Vault, user: User) -> dict[str, str]:
    return {each.credential.key: each.value for each in await vault.secrets(user, [HOST])}


async def again(vault: Vault, user: User) -> User:
    found = await vault.store.users.by_id(user.id)
    assert found is not None
    return found


async def sealed_with(vault: Vault, user: User) -> set[str]:
    return {sealing.key_id(each.sealed) for each in await vault.store.credentials.list(user.id)}


async def test_rotation_replaces_master_and_data_keys(store: Store) -> None:
    before = Vault(store, MasterKeys([OLD]))
    user, other = await filled(before), await before.add_user("al")
    told: list[str] = []
    vault = Vault(store, MasterKeys([NEW, OLD]))
    done = await rotation.rotate(vault, told.append)
    assert (done.users, done.credentials, done.unreadable) == (2, 20, ())
    assert told == [
        "al: 0 credentials sealed with a new key",
        "bo: 20 credentials sealed with a new key",
    ]
    # The old master key is not needed any more.
    after = Vault(store, MasterKeys([NEW]))
    await after.check()
    fresh = await again(after, user)
    keys_now = after.data_keys(fresh)
    assert keys_now.current.id != before.data_keys(user).current.id
    assert await sealed_with(after, user) == {keys_now.current.id}
    assert await opened(after, fresh) == KEPT
    assert set(datakeys.master_ids((await again(after, other)).data_key)) == {NEW.id}
    with pytest.raises(VaultError, match="is not the one"):
        await before.check()


async def test_who_read_the_user_before_a_rotation_reads_and_writes_after_it(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await filled(vault)
    stale = await store.credentials.list(user.id)
    await rotation.rotate(vault)
    await rotation.rotate(vault)
    assert await opened(vault, user) == KEPT
    assert {each.value for each in await vault.unseal(user, stale)} == set(KEPT.values())
    await vault.put_credential(user, HOST, "header", "key-0", "new")
    assert await opened(vault, await again(vault, user)) == {**KEPT, "key-0": "new"}
    assert len(await sealed_with(vault, user)) == 2
    await rotation.rotate(vault)
    assert len(await sealed_with(vault, user)) == 1
    assert await opened(vault, user) == {**KEPT, "key-0": "new"}


async def test_older_data_keys_go_when_nobody_can_be_writing_with_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await filled(vault)
    await rotation.rotate(vault)
    replaced = (await again(vault, user)).data_key
    later = time.time() + datakeys.GRACE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    await rotation.rotate(vault)
    fresh = await again(vault, user)
    assert set(vault.data_keys(fresh).ids).isdisjoint(vault.data_keys(user).ids)
    assert len(vault.data_keys(fresh).ids) == 2
    # Also for who reads with what was read long ago.
    assert await opened(vault, user) == KEPT
    assert await opened(vault, msgspec.structs.replace(user, data_key=replaced)) == KEPT


async def test_a_rotation_that_is_cut_short_leaves_everything_open_and_the_next_ends_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await filled(vault)
    reseal, calls = Credentials.reseal, 0

    async def failing(self: Credentials, id: str, old_sealed: str, new_sealed: str) -> bool:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise OSError("the power goes")
        return await reseal(self, id, old_sealed, new_sealed)

    with monkeypatch.context() as patch:
        patch.setattr(Credentials, "reseal", failing)
        with pytest.raises(OSError, match="the power goes"):
            await rotation.rotate(vault)
    halfway = await again(vault, user)
    assert len(halfway.data_key.split()) == 2
    assert len(await sealed_with(vault, user)) == 2
    assert await opened(vault, halfway) == KEPT
    assert await opened(vault, user) == KEPT
    await rotation.rotate(vault)
    fresh = await again(vault, user)
    assert await sealed_with(vault, user) == {vault.data_keys(fresh).current.id}
    assert await opened(vault, fresh) == KEPT


async def test_rotations_readers_and_writers_at_the_same_time_lose_nothing(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await filled(vault)
    rotating = True

    async def write(writer: int) -> int:
        count = 0
        while rotating or not count:
            await vault.put_credential(user, HOST, "cookie", f"written-{writer}", f"{writer}:{count}")
            found = await opened(vault, user)
            assert found[f"written-{writer}"] == f"{writer}:{count}"
            assert {key: found[key] for key in KEPT} == KEPT
            count += 1
        return count

    async def rotate() -> None:
        nonlocal rotating
        try:
            await asyncio.gather(*(rotation.rotate(vault) for _ in range(3)))
        finally:
            rotating = False

    counts, _ = await asyncio.gather(asyncio.gather(*(write(number) for number in range(3))), rotate())
    await rotation.rotate(vault)
    fresh = await again(vault, user)
    found = await opened(vault, fresh)
    assert found == {**KEPT, **{f"written-{each}": f"{each}:{counts[each] - 1}" for each in range(3)}}
    assert await sealed_with(vault, user) == {vault.data_keys(fresh).current.id}


async def test_another_process_reads_and_writes_while_master_and_data_keys_are_replaced(
    store: Store, store_settings: Settings
) -> None:
    home = store_settings.home_path
    environ = {**os.environ, "HUTCH_HOME": str(home)}
    if store_settings.database_url:
        environ["HUTCH_DATABASE_URL"] = store_settings.database_url
    vault = await Vault.open(store, home, {})
    user = await filled(vault)
    first = vault.master.current.id
    reader = await asyncio.create_subprocess_exec(
        sys.executable, READER, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ
    )
    try:
        assert reader.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await reader.stdout.readline() == b"ready\n"
            assert await reader.stdout.readline() == b"reading\n"
            for _ in range(3):
                vault.master = keys.add(home, {})
                await rotation.rotate(vault)
            out, error = await reader.communicate(b"stop\n")
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    assert (reader.returncode, error) == (0, b"")
    count = int(out)
    fresh = await again(vault, user)
    assert await opened(vault, fresh) == {**KEPT, "written": str(count)}
    word = await store.meta.get(canary.KEY)
    assert word is not None
    assert sealing.key_id(word) == vault.master.current.id != first
    assert set(datakeys.master_ids(fresh.data_key)) == {vault.master.current.id}


async def test_a_row_that_was_altered_is_told_and_left_as_it_is(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await filled(vault)
    await execute(store, "UPDATE credentials SET domain = 'evil.example' WHERE key = 'key-3'")
    await execute(store, "UPDATE credentials SET sealed = 'nonsense' WHERE key = 'key-4'")
    done = await rotation.rotate(vault)
    assert done.credentials == 18
    assert sorted(done.unreadable) == ["bo: api.example.com::key-4", "bo: evil.example::key-3"]
    # Moved back, it opens: its key is still there.
    await execute(store, "UPDATE credentials SET domain = :host WHERE key = 'key-3'", host=HOST)
    await execute(store, "DELETE FROM credentials WHERE key = 'key-4'")
    expected = {key: value for key, value in KEPT.items() if key != "key-4"}
    assert await opened(vault, await again(vault, user)) == expected
    assert (await rotation.rotate(vault)).unreadable == ()
    assert len(await sealed_with(vault, user)) == 1
