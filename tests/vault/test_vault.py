"""The vault on a real store, with SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.vault.raw_tables import all_rows, execute

from hutch.errors import AlreadyExists, InvalidInput, Unauthorized, VaultError
from hutch.store import models
from hutch.store.models import User
from hutch.store.store import Store
from hutch.vault import api_keys, crypto, rotation
from hutch.vault.crypto import MasterKey, MasterKeys
from hutch.vault.vault import Vault

pytestmark = pytest.mark.anyio

RIGHT, WRONG = MasterKeys([MasterKey(b"r" * 32)]), MasterKeys([MasterKey(b"w" * 32)])
VALUE = "Bearer sk-0123456789abcdefghijWXYZ"
HOST = "api.example.com"


async def values(vault: Vault, user: User, *domains: str) -> list[str]:
    return [each.value for each in await vault.secrets(user, domains or [HOST])]


@pytest.fixture
async def vault(store: Store) -> Vault:
    vault = Vault(store, RIGHT)
    await vault.check()
    return vault


@pytest.fixture
async def user(vault: Vault) -> User:
    return await vault.add_user("bo")


# --- the master key ---


async def test_wrong_master_key_is_rejected_and_nothing_is_overwritten(vault: Vault, user: User) -> None:
    await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    before = await all_rows(vault.store)
    wrong = Vault(vault.store, WRONG)
    expected = (
        f"not the one that this database is encrypted with: that is {RIGHT.current.id}.*HUTCH_MASTER_KEY"
    )
    with pytest.raises(VaultError, match=expected):
        await wrong.check()
    with pytest.raises(VaultError, match="Nothing was changed"):
        await wrong.add_user("eve")
    with pytest.raises(VaultError):
        await wrong.put_credential(user, HOST, "header", "Authorization", "another")
    with pytest.raises(VaultError):
        await wrong.secrets(user, [HOST])
    with pytest.raises(VaultError):
        await rotation.rotate(wrong)
    assert await all_rows(vault.store) == before
    assert await values(vault, user) == [VALUE]


async def test_wrong_master_key_is_rejected_without_the_check_value(vault: Vault, user: User) -> None:
    await execute(vault.store, "DELETE FROM meta")
    with pytest.raises(VaultError, match="is not the one"):
        await Vault(vault.store, WRONG).check()
    assert await vault.store.meta.get("vault.canary") is None
    await vault.check()
    assert await vault.store.meta.get("vault.canary") is not None


async def test_one_of_two_first_starts_with_different_keys_is_rejected(store: Store) -> None:
    vaults = [Vault(store, RIGHT), Vault(store, WRONG)]
    outcomes = await asyncio.gather(*(each.check() for each in vaults), return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["NoneType", "VaultError"]


async def test_lost_master_key_is_not_replaced_by_a_new_one(store: Store, tmp_path: Path) -> None:
    home = tmp_path / "first"
    vault = await Vault.open(store, home, {})
    await vault.add_user("bo")
    (home / crypto.MASTER_KEY_FILE).rename(tmp_path / "backup")
    with pytest.raises(VaultError, match=r"There is no master key: .* restore the file from a backup"):
        await Vault.open(store, home, {})
    assert not (home / crypto.MASTER_KEY_FILE).exists()
    (tmp_path / "backup").rename(home / crypto.MASTER_KEY_FILE)
    await Vault.open(store, home, {})


async def test_master_key_of_another_home_is_rejected(store: Store, tmp_path: Path) -> None:
    await Vault.open(store, tmp_path / "first", {})
    crypto.load_master_keys(tmp_path / "second", {})
    with pytest.raises(VaultError, match="is not the one that this database is encrypted with"):
        await Vault.open(store, tmp_path / "second", {})


async def test_newly_added_master_key_is_loaded(store: Store, tmp_path: Path) -> None:
    early = await Vault.open(store, tmp_path, {})
    user = await early.add_user("bo")
    await early.put_credential(user, HOST, "header", "Authorization", VALUE)
    late = await Vault.open(store, tmp_path, {})
    late.master = crypto.add_master_key(tmp_path, {})
    await rotation.rotate(late)
    assert await values(early, user) == [VALUE]
    assert early.master.ids == late.master.ids
    await early.add_user("al")


async def test_master_key_with_the_right_id_and_wrong_bits_decrypts_nothing(vault: Vault, user: User) -> None:
    forged = MasterKey(b"f" * 32)
    forged.id = RIGHT.current.id
    with pytest.raises(VaultError, match="altered"):
        await Vault(vault.store, MasterKeys([forged])).check()


# --- users ---


async def test_duplicate_name_is_rejected(vault: Vault, user: User) -> None:
    with pytest.raises(AlreadyExists, match="'bo'"):
        await vault.add_user("bo")
    assert [each.id for each in await vault.store.users.list()] == [user.id]


async def test_invalid_names_are_rejected(vault: Vault) -> None:
    for name in ("", " ", "a b", "-a", "a/b", "ä", "a\n", "x" * 65, "\x1b[31m"):
        with pytest.raises(InvalidInput, match="name: expected 1 to 64 letters"):
            await vault.add_user(name)
    assert not await vault.store.users.any()


async def test_each_user_has_a_separate_data_key(vault: Vault, user: User) -> None:
    other = await vault.add_user("al")
    assert vault.data_keys(user).current.secret != vault.data_keys(other).current.secret


# --- API keys ---


async def test_key_is_valid_until_revoked(vault: Vault, user: User) -> None:
    key, secret = await vault.issue_key(user, "laptop")
    identity = await api_keys.authenticate(vault.store, secret)
    assert (identity.user, identity.key) == (user, key)
    assert await vault.store.api_keys.revoke(key.id, models.now())
    with pytest.raises(Unauthorized) as caught:
        await api_keys.authenticate(vault.store, secret)
    assert caught.value.reason == "revoked"
    await vault.store.api_keys.remove(key.id)
    with pytest.raises(Unauthorized) as caught:
        await api_keys.authenticate(vault.store, secret)
    assert caught.value.reason == "unknown"


async def test_key_is_valid_until_expired(vault: Vault, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = await vault.issue_key(user, "", expires_at=models.now(plus_seconds=3600))
    await api_keys.authenticate(vault.store, secret)
    later = models.now(plus_seconds=3601)
    monkeypatch.setattr(models, "now", lambda: later)
    with pytest.raises(Unauthorized) as caught:
        await api_keys.authenticate(vault.store, secret)
    assert caught.value.reason == "expired"


async def test_secret_of_a_key_is_not_in_the_store(vault: Vault, user: User) -> None:
    _, secret = await vault.issue_key(user, "")
    assert secret[3:30] not in await all_rows(vault.store)


async def test_keys_of_a_removed_user_are_rejected(vault: Vault, user: User) -> None:
    _, secret = await vault.issue_key(user, "")
    await vault.store.users.remove(user.id)
    with pytest.raises(Unauthorized, match="not known"):
        await api_keys.authenticate(vault.store, secret)


async def test_last_use_of_a_key_is_recorded(vault: Vault, user: User) -> None:
    _, secret = await vault.issue_key(user, "")
    assert (await vault.store.api_keys.list(user.id))[0].last_used_at is None
    await api_keys.authenticate(vault.store, secret)
    await vault.store.write_behind.flush()
    assert (await vault.store.api_keys.list(user.id))[0].last_used_at is not None


# --- credentials ---


async def test_credential_round_trip_is_encrypted_in_the_store(vault: Vault, user: User) -> None:
    credential = await vault.put_credential(user, HOST, "header", f"{HOST}::Authorization", VALUE)
    await vault.put_credential(user, HOST, "cookie", "sid", "abc")
    await vault.put_credential(user, "other.example", "header", "apikey", "def")
    assert (credential.domain, credential.key, credential.hint, credential.state) == (
        HOST,
        "Authorization",
        "WXYZ",
        "active",
    )
    assert sorted(await values(vault, user)) == [VALUE, "abc"]
    assert await values(vault, user, "other.example") == ["def"]
    assert await values(vault, user, "none.example") == []
    assert "sk-0123" not in await all_rows(vault.store)


async def test_new_value_replaces_the_previous_one_in_any_case(vault: Vault, user: User) -> None:
    first = await vault.put_credential(user, HOST, "header", "Authorization", "first")
    await vault.expire([first.id], "401")
    second = await vault.put_credential(user, HOST.upper(), "header", "authorization", "second")
    assert second.id == first.id
    (found,) = await vault.secrets(user, [HOST])
    assert (found.value, found.credential.state, found.credential.key) == (
        "second",
        "active",
        "authorization",
    )


async def test_users_see_only_their_own_credentials(vault: Vault, user: User) -> None:
    other = await vault.add_user("al")
    await vault.put_credential(user, HOST, "header", "Authorization", "bo's")
    await vault.put_credential(other, HOST, "header", "Authorization", "al's")
    assert await values(vault, user) == ["bo's"]
    assert await values(vault, other) == ["al's"]
    with pytest.raises(VaultError, match="belong to another user"):
        await vault.decrypt(other, await vault.store.credentials.list(user.id))


@pytest.mark.parametrize(
    "change", ["user_id = :other", "domain = 'evil.example'", "kind = 'cookie'", "key = 'X-Other'"]
)
async def test_row_moved_in_the_database_cannot_be_decrypted(vault: Vault, user: User, change: str) -> None:
    other = await vault.add_user("al")
    await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    await execute(vault.store, f"UPDATE credentials SET {change}", other=other.id)
    for each in (user, other):
        if await vault.store.credentials.list(each.id):
            with pytest.raises(VaultError) as caught:
                await vault.secrets(each, [HOST, "evil.example"])
            assert "sk-" not in str(caught.value)
            assert "sk-" not in repr(caught.value.__context__)
        else:
            assert await values(vault, each, HOST, "evil.example") == []


async def test_data_key_moved_to_another_user_cannot_be_decrypted(vault: Vault, user: User) -> None:
    other = await vault.add_user("al")
    await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    await execute(
        vault.store, "UPDATE users SET data_key = :key WHERE id = :id", key=user.data_key, id=other.id
    )
    await execute(vault.store, "UPDATE credentials SET user_id = :id", id=other.id)
    stolen = await vault.store.users.by_id(other.id)
    assert stolen is not None
    with pytest.raises(VaultError, match="belongs to another record"):
        await vault.secrets(stolen, [HOST])


async def test_invalid_names_and_values_are_rejected_and_nothing_is_stored(vault: Vault, user: User) -> None:
    for given in (
        ("https://a", "header", "x", "secretvalue"),
        (HOST, "nothing", "x", "secretvalue"),
        (HOST, "header", "a b", "secretvalue"),
        (HOST, "header", "x", "secret\r\nvalue"),
        (HOST, "header", "x", ""),
    ):
        with pytest.raises(InvalidInput) as caught:
            await vault.put_credential(user, *given)
        assert "secret" not in str(caught.value)
    assert await vault.store.credentials.list(user.id) == []


async def test_expired_state_is_cleared_by_a_success(vault: Vault, user: User) -> None:
    credential = await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    other = await vault.put_credential(user, HOST, "header", "X-Key", "other")
    await vault.expire([credential.id], "401 from api.example.com")
    found = {each.credential.id: each.credential for each in await vault.secrets(user, [HOST])}
    assert (found[credential.id].state, found[credential.id].cause) == ("expired", "401 from api.example.com")
    assert found[credential.id].expired_at is not None
    assert found[other.id].state == "active"
    await vault.revive([credential.id])
    assert {each.credential.state for each in await vault.secrets(user, [HOST])} == {"active"}


async def test_values_are_in_no_log_and_no_listing(
    vault: Vault, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    _, secret = await vault.issue_key(user, "laptop")
    identity = await api_keys.authenticate(vault.store, secret)
    found = await vault.secrets(user, [HOST])
    await rotation.rotate(vault)
    listed: list[Any] = [
        await vault.store.credentials.list(user.id),
        await vault.store.api_keys.list(user.id),
    ]
    shown = [caplog.text, repr(found), repr(identity), repr(vault), repr(listed)]
    shown += [msgspec.json.encode(listed).decode()]
    for text in shown:
        assert "sk-0123" not in text
        assert secret[3:30] not in text


async def test_removing_a_user_removes_the_credentials(vault: Vault, user: User) -> None:
    await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    await vault.store.users.remove(user.id)
    assert await values(vault, user) == []
    with pytest.raises(VaultError, match="The user bo has been removed"):
        await vault.put_credential(user, HOST, "header", "Authorization", VALUE)
    with pytest.raises(VaultError, match="The user bo has been removed"):
        await vault.issue_key(user, "")
