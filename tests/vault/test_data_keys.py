from __future__ import annotations

import time

import pytest

from hutch.errors import VaultError
from hutch.vault import crypto, data_keys
from hutch.vault.crypto import MasterKey, MasterKeys

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)


def test_data_key_is_bound_to_its_user_and_master_key() -> None:
    text = data_keys.create_data_key(MasterKeys([OLD]), "user_a")
    assert len(data_keys.decrypt_data_keys(MasterKeys([NEW, OLD]), text, "user_a").current.secret) == 32
    with pytest.raises(VaultError, match="belongs to another record"):
        data_keys.decrypt_data_keys(MasterKeys([OLD]), text, "user_b")
    with pytest.raises(crypto.KeyMissing, match=OLD.id):
        data_keys.decrypt_data_keys(MasterKeys([NEW]), text, "user_a")


def test_data_keys_are_unique() -> None:
    master = MasterKeys([OLD])
    secrets = {
        data_keys.decrypt_data_keys(
            master, data_keys.create_data_key(master, "user_a"), "user_a"
        ).current.secret
        for _ in range(20)
    }
    assert len(secrets) == 20


def test_new_key_encrypts_and_older_keys_decrypt() -> None:
    before = data_keys.create_data_key(MasterKeys([OLD]), "user_a")
    first = data_keys.decrypt_data_keys(MasterKeys([OLD]), before, "user_a").current
    after = data_keys.add_data_key(MasterKeys([NEW, OLD]), before, "user_a")
    assert data_keys.master_key_ids(after) == [NEW.id, NEW.id]
    found = data_keys.decrypt_data_keys(MasterKeys([NEW]), after, "user_a")
    assert found.current.id != first.id
    assert found.ids == [found.current.id, first.id]
    older = found.find(first.id)
    assert older is not None
    assert older.secret == first.secret


def test_replaced_key_is_dropped_after_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    master, now = MasterKeys([OLD]), 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    first = data_keys.create_data_key(master, "user_a")
    now += 100 * data_keys.GRACE_SECONDS
    # The grace period begins when a key is replaced. So the replaced key is kept, although it is old.
    second = data_keys.add_data_key(master, first, "user_a")
    assert data_keys.drop_expired_keys(second) == second
    now += data_keys.GRACE_SECONDS - 1
    third = data_keys.add_data_key(master, second, "user_a")
    assert data_keys.drop_expired_keys(third) == third
    now += 2
    assert len(data_keys.parse_entries(data_keys.drop_expired_keys(third))) == 2
    now += data_keys.GRACE_SECONDS
    assert data_keys.drop_expired_keys(third) == third.split()[0]


@pytest.mark.parametrize("text", ["", " ", "hutch1.a.b", "x:hutch1.a.b", "1800000000:garbage"])
def test_corrupt_text_is_rejected(text: str) -> None:
    with pytest.raises(VaultError):
        data_keys.decrypt_data_keys(MasterKeys([OLD]), text, "user_a")


def test_data_key_and_master_key_with_the_same_bits_have_different_ids() -> None:
    assert data_keys.DataKey(b"o" * 32).id != OLD.id


def test_secrets_are_never_shown() -> None:
    master = MasterKeys([OLD])
    text = data_keys.create_data_key(master, "user_a")
    found = data_keys.decrypt_data_keys(master, text, "user_a")
    for shown in (text, repr(found), repr(found.current), str(found.current)):
        assert found.current.secret.hex() not in shown
        assert repr(found.current.secret) not in shown
