from __future__ import annotations

import time

import pytest

from hutch.errors import VaultError
from hutch.vault import datakeys, sealing
from hutch.vault.keys import MasterKey, MasterKeys

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)


def test_a_data_key_opens_for_its_user_with_its_master_key_alone() -> None:
    text = datakeys.make(MasterKeys([OLD]), "user_a")
    assert len(datakeys.unseal(MasterKeys([NEW, OLD]), text, "user_a").current.secret) == 32
    with pytest.raises(VaultError, match="about something else"):
        datakeys.unseal(MasterKeys([OLD]), text, "user_b")
    with pytest.raises(sealing.KeyMissing, match=OLD.id):
        datakeys.unseal(MasterKeys([NEW]), text, "user_a")


def test_no_two_are_alike() -> None:
    master = MasterKeys([OLD])
    made = {
        datakeys.unseal(master, datakeys.make(master, "user_a"), "user_a").current.secret for _ in range(20)
    }
    assert len(made) == 20


def test_a_new_one_seals_the_older_open_and_all_are_sealed_with_the_current_master_key() -> None:
    before = datakeys.make(MasterKeys([OLD]), "user_a")
    first = datakeys.unseal(MasterKeys([OLD]), before, "user_a").current
    after = datakeys.add(MasterKeys([NEW, OLD]), before, "user_a")
    assert datakeys.master_ids(after) == [NEW.id, NEW.id]
    found = datakeys.unseal(MasterKeys([NEW]), after, "user_a")
    assert found.current.id != first.id
    assert found.ids == [found.current.id, first.id]
    older = found.find(first.id)
    assert older is not None
    assert older.secret == first.secret


def test_a_replaced_one_opens_for_a_while_and_then_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    master, now = MasterKeys([OLD]), 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    first = datakeys.make(master, "user_a")
    now += 100 * datakeys.GRACE_SECONDS
    # However old it is: it was in use until now.
    second = datakeys.add(master, first, "user_a")
    assert datakeys.drop(second) == second
    now += datakeys.GRACE_SECONDS - 1
    third = datakeys.add(master, second, "user_a")
    assert datakeys.drop(third) == third
    now += 2
    assert len(datakeys.entries(datakeys.drop(third))) == 2
    now += datakeys.GRACE_SECONDS
    assert datakeys.drop(third) == third.split()[0]


@pytest.mark.parametrize("text", ["", " ", "hutch1.a.b", "x:hutch1.a.b", "1800000000:nonsense"])
def test_what_is_no_data_key_is_said_to_be_none(text: str) -> None:
    with pytest.raises(VaultError):
        datakeys.unseal(MasterKeys([OLD]), text, "user_a")


def test_a_data_key_never_passes_for_a_master_key() -> None:
    """Even with the same bits their ids differ."""
    assert datakeys.DataKey(b"o" * 32).id != OLD.id


def test_secrets_do_not_show() -> None:
    master = MasterKeys([OLD])
    text = datakeys.make(master, "user_a")
    found = datakeys.unseal(master, text, "user_a")
    for shown in (text, repr(found), repr(found.current), str(found.current)):
        assert found.current.secret.hex() not in shown
        assert repr(found.current.secret) not in shown
