from __future__ import annotations

import pytest

from hutch.errors import VaultError
from hutch.vault import sealing
from hutch.vault.keys import MasterKey, MasterKeys

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
KEYS = MasterKeys([NEW, OLD])


def test_what_was_sealed_opens_for_whom_it_is_about() -> None:
    sealed = sealing.seal(KEYS, b"a secret", "oauth", "github")
    assert sealing.unseal(KEYS, sealed, "oauth", "github") == b"a secret"
    assert sealed.startswith(f"hutch1.{NEW.id}.")
    assert "secret" not in sealed


def test_the_same_secret_is_never_sealed_to_the_same_text() -> None:
    assert sealing.seal(KEYS, b"x") != sealing.seal(KEYS, b"x")


@pytest.mark.parametrize(
    "about", [(), ("oauth",), ("oauth", "gitlab"), ("oauthg", "ithub"), ("github", "oauth")]
)
def test_text_that_was_moved_elsewhere_does_not_open(about: tuple[str, ...]) -> None:
    sealed = sealing.seal(KEYS, b"a secret", "oauth", "github")
    with pytest.raises(VaultError, match="altered, or is about something else"):
        sealing.unseal(KEYS, sealed, *about)


def test_every_altered_character_is_noticed() -> None:
    sealed = sealing.seal(KEYS, b"a secret")
    for place in range(len(sealed)):
        other = "A" if sealed[place] != "A" else "B"
        altered = sealed[:place] + other + sealed[place + 1 :]
        # The last character's lowest bits are no part of the text.
        if place < len(sealed) - 1:
            with pytest.raises(VaultError):
                sealing.unseal(KEYS, altered)


@pytest.mark.parametrize(
    "text", ["", "hutch1", "hutch1..", "hutch2.a.b", "plain text", "hutch1.abc.AAAA", "ü"]
)
def test_what_is_no_sealed_text_is_said_to_be_none(text: str) -> None:
    with pytest.raises(VaultError):
        sealing.unseal(KEYS, text)


def test_older_keys_open_and_do_not_seal() -> None:
    sealed = sealing.seal(MasterKeys([OLD]), b"a secret")
    assert sealing.unseal(KEYS, sealed) == b"a secret"
    assert not sealing.is_current(KEYS, sealed)
    assert sealing.is_current(KEYS, sealing.seal(KEYS, b"a secret"))


def test_a_missing_key_is_named() -> None:
    sealed = sealing.seal(MasterKeys([OLD]), b"a secret")
    with pytest.raises(VaultError, match=f"master key {OLD.id}.*HUTCH_MASTER_KEY"):
        sealing.unseal(MasterKeys([NEW]), sealed)
