from __future__ import annotations

import pytest

from hutch.errors import VaultError
from hutch.vault import crypto
from hutch.vault.crypto import MasterKey, MasterKeys

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
KEYS = MasterKeys([NEW, OLD])


def test_text_is_decrypted_with_the_same_context() -> None:
    encrypted = crypto.encrypt(KEYS, b"a secret", "oauth", "github")
    assert crypto.decrypt(KEYS, encrypted, "oauth", "github") == b"a secret"
    assert encrypted.startswith(f"hutch1.{NEW.id}.")
    assert "secret" not in encrypted


def test_ciphertexts_are_unique() -> None:
    assert crypto.encrypt(KEYS, b"x") != crypto.encrypt(KEYS, b"x")


@pytest.mark.parametrize(
    "context", [(), ("oauth",), ("oauth", "gitlab"), ("oauthg", "ithub"), ("github", "oauth")]
)
def test_another_context_fails(context: tuple[str, ...]) -> None:
    encrypted = crypto.encrypt(KEYS, b"a secret", "oauth", "github")
    with pytest.raises(VaultError, match="altered, or belongs to another record"):
        crypto.decrypt(KEYS, encrypted, *context)


def test_every_altered_character_is_detected() -> None:
    encrypted = crypto.encrypt(KEYS, b"a secret")
    for place in range(len(encrypted)):
        other = "A" if encrypted[place] != "A" else "B"
        altered = encrypted[:place] + other + encrypted[place + 1 :]
        # A change of the last character may have no effect, because the lowest bits of this character are not
        # part of the encoded data.
        if place < len(encrypted) - 1:
            with pytest.raises(VaultError):
                crypto.decrypt(KEYS, altered)


@pytest.mark.parametrize(
    "text", ["", "hutch1", "hutch1..", "hutch2.a.b", "plain text", "hutch1.abc.AAAA", "ü"]
)
def test_invalid_text_is_rejected(text: str) -> None:
    with pytest.raises(VaultError):
        crypto.decrypt(KEYS, text)


def test_older_keys_decrypt_and_do_not_encrypt() -> None:
    encrypted = crypto.encrypt(MasterKeys([OLD]), b"a secret")
    assert crypto.decrypt(KEYS, encrypted) == b"a secret"
    assert not crypto.is_current(KEYS, encrypted)
    assert crypto.is_current(KEYS, crypto.encrypt(KEYS, b"a secret"))


def test_missing_key_is_named() -> None:
    encrypted = crypto.encrypt(MasterKeys([OLD]), b"a secret")
    with pytest.raises(VaultError, match=f"master key {OLD.id}.*HUTCH_MASTER_KEY"):
        crypto.decrypt(MasterKeys([NEW]), encrypted)
