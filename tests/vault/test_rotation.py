"""Rotation of keys while other processes read and write."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec
import pytest
from tests.support.processes import TIMEOUT_SECONDS
from tests.vault.raw_tables import execute

from hutch.errors import VaultError
from hutch.settings import Settings
from hutch.store.models import User
from hutch.store.store import Store
from hutch.store.tables.credentials import CredentialTable
from hutch.vault import crypto, data_keys, master_key_check, rotation
from hutch.vault.crypto import MasterKey, MasterKeys
from hutch.vault.vault import Vault

pytestmark = pytest.mark.anyio

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
HOST = "api.example.com"
READER = Path(__file__).with_name("credential_reader.py")
CREDENTIALS = {f"key-{number}": f"value {number}" for number in range(20)}


async def add_user_with_credentials(vault: Vault, name: str = "bo") -> User:
    user = await vault.add_user(name)
    for key, value in CREDENTIALS.items():
        await vault.put_credential(user, HOST, "header", key, value)
    return user


async def decrypted_values(vault: Vault, user: User) -> dict[str, str]:
    return {each.credential.key: each.value for each in await vault.secrets(user, [HOST])}


async def reread(vault: Vault, user: User) -> User:
    found = await vault.store.users.by_id(user.id)
    assert found is not None
    return found


async def key_ids(vault: Vault, user: User) -> set[str]:
    return {crypto.key_id(each.sealed) for each in await vault.store.credentials.list(user.id)}


async def test_rotation_replaces_master_and_data_keys(store: Store) -> None:
    before = Vault(store, MasterKeys([OLD]))
    user, other = await add_user_with_credentials(before), await before.add_user("al")
    messages: list[str] = []
    vault = Vault(store, MasterKeys([NEW, OLD]))
    done = await rotation.rotate(vault, messages.append)
    assert (done.users, done.credentials, done.unreadable) == (2, 20, ())
    assert messages == [
        "al: 0 credentials encrypted with a new key",
        "bo: 20 credentials encrypted with a new key",
    ]
    # Everything can be decrypted although the old master key is missing.
    after = Vault(store, MasterKeys([NEW]))
    await after.check()
    fresh = await reread(after, user)
    keys_now = after.data_keys(fresh)
    assert keys_now.current.id != before.data_keys(user).current.id
    assert await key_ids(after, user) == {keys_now.current.id}
    assert await decrypted_values(after, fresh) == CREDENTIALS
    assert set(data_keys.master_key_ids((await reread(after, other)).data_key)) == {NEW.id}
    with pytest.raises(VaultError, match="is not the one"):
        await before.check()


async def test_user_read_before_a_rotation_can_be_used_after_it(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await add_user_with_credentials(vault)
    stale = await store.credentials.list(user.id)
    await rotation.rotate(vault)
    await rotation.rotate(vault)
    assert await decrypted_values(vault, user) == CREDENTIALS
    assert {each.value for each in await vault.decrypt(user, stale)} == set(CREDENTIALS.values())
    await vault.put_credential(user, HOST, "header", "key-0", "new")
    assert await decrypted_values(vault, await reread(vault, user)) == {**CREDENTIALS, "key-0": "new"}
    assert len(await key_ids(vault, user)) == 2
    await rotation.rotate(vault)
    assert len(await key_ids(vault, user)) == 1
    assert await decrypted_values(vault, user) == {**CREDENTIALS, "key-0": "new"}


async def test_older_data_keys_are_dropped_after_the_grace_period(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await add_user_with_credentials(vault)
    await rotation.rotate(vault)
    replaced = (await reread(vault, user)).data_key
    later = time.time() + data_keys.GRACE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    await rotation.rotate(vault)
    fresh = await reread(vault, user)
    assert set(vault.data_keys(fresh).ids).isdisjoint(vault.data_keys(user).ids)
    assert len(vault.data_keys(fresh).ids) == 2
    # Decryption also works with the copies of the user that were read before the rotations.
    assert await decrypted_values(vault, user) == CREDENTIALS
    assert await decrypted_values(vault, msgspec.structs.replace(user, data_key=replaced)) == CREDENTIALS


async def test_interrupted_rotation_loses_nothing_and_is_completed_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await add_user_with_credentials(vault)
    replace, calls = CredentialTable.replace_sealed, 0

    async def failing(self: CredentialTable, id: str, old_sealed: str, new_sealed: str) -> bool:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise OSError("the power goes")
        return await replace(self, id, old_sealed, new_sealed)

    with monkeypatch.context() as patch:
        patch.setattr(CredentialTable, "replace_sealed", failing)
        with pytest.raises(OSError, match="the power goes"):
            await rotation.rotate(vault)
    halfway = await reread(vault, user)
    assert len(halfway.data_key.split()) == 2
    assert len(await key_ids(vault, user)) == 2
    assert await decrypted_values(vault, halfway) == CREDENTIALS
    assert await decrypted_values(vault, user) == CREDENTIALS
    await rotation.rotate(vault)
    fresh = await reread(vault, user)
    assert await key_ids(vault, user) == {vault.data_keys(fresh).current.id}
    assert await decrypted_values(vault, fresh) == CREDENTIALS


async def test_concurrent_rotations_readers_and_writers_lose_nothing(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await add_user_with_credentials(vault)
    rotating = True

    async def write(writer: int) -> int:
        count = 0
        while rotating or not count:
            await vault.put_credential(user, HOST, "cookie", f"written-{writer}", f"{writer}:{count}")
            found = await decrypted_values(vault, user)
            assert found[f"written-{writer}"] == f"{writer}:{count}"
            assert {key: found[key] for key in CREDENTIALS} == CREDENTIALS
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
    fresh = await reread(vault, user)
    found = await decrypted_values(vault, fresh)
    assert found == {**CREDENTIALS, **{f"written-{each}": f"{each}:{counts[each] - 1}" for each in range(3)}}
    assert await key_ids(vault, user) == {vault.data_keys(fresh).current.id}


async def test_another_process_reads_and_writes_during_a_rotation(
    store: Store, store_settings: Settings
) -> None:
    home = store_settings.home_path
    environ = {**os.environ, "HUTCH_HOME": str(home)}
    if store_settings.database_url:
        environ["HUTCH_DATABASE_URL"] = store_settings.database_url
    vault = await Vault.open(store, home, {})
    user = await add_user_with_credentials(vault)
    first = vault.master.current.id
    reader = await asyncio.create_subprocess_exec(
        sys.executable, READER, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ
    )
    try:
        assert reader.stdout is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await reader.stdout.readline() == b"ready\n"
            assert await reader.stdout.readline() == b"reading\n"
            for _ in range(3):
                vault.master = crypto.add_master_key(home, {})
                await rotation.rotate(vault)
            out, error = await reader.communicate(b"stop\n")
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    assert (reader.returncode, error) == (0, b"")
    count = int(out)
    fresh = await reread(vault, user)
    assert await decrypted_values(vault, fresh) == {**CREDENTIALS, "written": str(count)}
    word = await store.meta.get(master_key_check.META_KEY)
    assert word is not None
    assert crypto.key_id(word) == vault.master.current.id != first
    assert set(data_keys.master_key_ids(fresh.data_key)) == {vault.master.current.id}


async def test_altered_row_is_reported_and_unchanged(store: Store) -> None:
    vault = Vault(store, MasterKeys([OLD]))
    user = await add_user_with_credentials(vault)
    await execute(store, "UPDATE credentials SET domain = 'evil.example' WHERE key = 'key-3'")
    await execute(store, "UPDATE credentials SET sealed = 'garbage' WHERE key = 'key-4'")
    done = await rotation.rotate(vault)
    assert done.credentials == 18
    assert sorted(done.unreadable) == ["bo: api.example.com::key-4", "bo: evil.example::key-3"]
    # The key of the credential was kept, so the credential can be decrypted after it is moved back to its own
    # domain.
    await execute(store, "UPDATE credentials SET domain = :host WHERE key = 'key-3'", host=HOST)
    await execute(store, "DELETE FROM credentials WHERE key = 'key-4'")
    expected = {key: value for key, value in CREDENTIALS.items() if key != "key-4"}
    assert await decrypted_values(vault, await reread(vault, user)) == expected
    assert (await rotation.rotate(vault)).unreadable == ()
    assert len(await key_ids(vault, user)) == 1
