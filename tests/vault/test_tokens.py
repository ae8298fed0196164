from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hutch.errors import VaultError
from hutch.vault import crypto
from hutch.vault.tokens import Tokens

ABOUT = ("oauth", "git hub/../x", "https://example.com/mcp")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens.at(tmp_path, {})


def test_tokens_are_encrypted_private_files(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b'{"access_token":"s3cret"}', *ABOUT)
    folder = tmp_path / "tokens"
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"s3cret" not in file.read_bytes()
    assert tokens.get(*ABOUT) == b'{"access_token":"s3cret"}'


def test_nothing_is_created_before_the_first_token(tokens: Tokens, tmp_path: Path) -> None:
    assert tokens.get(*ABOUT) is None
    assert tokens.stamp(*ABOUT) is None
    assert not tokens.remove(*ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_token_of_another_server_is_not_found(tokens: Tokens) -> None:
    tokens.put(b"x", *ABOUT)
    assert tokens.get("oauth", ABOUT[1], "https://elsewhere.example/mcp") is None


def test_swapped_file_cannot_be_decrypted(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"of one", "oauth", "one", "u")
    (one,) = (tmp_path / "tokens").iterdir()
    tokens.put(b"of two", "oauth", "two", "u")
    (two,) = set((tmp_path / "tokens").iterdir()) - {one}
    two.write_bytes(one.read_bytes())
    with pytest.raises(VaultError, match=f"{two.name}.*belongs to another record"):
        tokens.get("oauth", "two", "u")


def test_new_token_replaces_the_old_and_changes_the_stamp(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"old", *ABOUT)
    before = tokens.stamp(*ABOUT)
    tokens.put(b"new", *ABOUT)
    assert tokens.stamp(*ABOUT) != before
    assert tokens.get(*ABOUT) == b"new"
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    assert tokens.remove(*ABOUT)
    assert tokens.get(*ABOUT) is None


def test_token_of_an_older_key_is_encrypted_again_with_the_current_one(tmp_path: Path) -> None:
    old, new = crypto.generate_master_key(), crypto.generate_master_key()
    Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": old}).put(b"x", *ABOUT)
    assert Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": f"{new},{old}"}).get(*ABOUT) == b"x"
    assert Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": new}).get(*ABOUT) == b"x"


def test_token_with_a_newly_added_key_is_decrypted(tmp_path: Path) -> None:
    early = Tokens.at(tmp_path, {})
    early.put(b"first", "oauth", "a")
    late = crypto.add_master_key(tmp_path, {})
    Tokens.at(tmp_path, {}).put(b"second", "oauth", "a")
    assert early.master_key_ids() == [late.current.id]
    assert early.get("oauth", "a") == b"second"


def test_lost_master_key_is_reported_with_the_file(tmp_path: Path) -> None:
    Tokens.at(tmp_path, {}).put(b"x", *ABOUT)
    (tmp_path / "master.key").unlink()
    with pytest.raises(VaultError, match=r"\.sealed: It is encrypted with the master key"):
        Tokens.at(tmp_path, {}).get(*ABOUT)


def test_accessible_token_file_is_rejected(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"x", *ABOUT)
    (file,) = (tmp_path / "tokens").iterdir()
    file.chmod(0o644)
    with pytest.raises(VaultError, match=r"0644.*chmod 600"):
        tokens.get(*ABOUT)


def test_accessible_folder_is_made_private_and_logged(
    tokens: Tokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokens").mkdir(mode=0o755)
    with caplog.at_level(logging.WARNING):
        tokens.put(b"x", *ABOUT)
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    assert "was accessible to other users" in caplog.text


def test_invalid_token_file_is_reported(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"x", *ABOUT)
    (file,) = (tmp_path / "tokens").iterdir()
    for content in (b"", b"\xff", b"hello"):
        file.write_bytes(content)
        with pytest.raises(VaultError, match=file.name):
            tokens.get(*ABOUT)


def test_secrets_are_never_shown(tokens: Tokens) -> None:
    tokens.put(b"s3cret", *ABOUT)
    assert "s3cret" not in repr(tokens)
