from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hutch.errors import VaultError
from hutch.vault import keys
from hutch.vault.tokens import Tokens

ABOUT = ("oauth", "git hub/../x", "https://example.com/mcp")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens.at(tmp_path, {})


def test_tokens_are_sealed_files_for_their_owner_alone(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b'{"access_token":"s3cret"}', *ABOUT)
    folder = tmp_path / "tokens"
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"s3cret" not in file.read_bytes()
    assert tokens.get(*ABOUT) == b'{"access_token":"s3cret"}'


def test_nothing_is_made_until_there_is_a_token(tokens: Tokens, tmp_path: Path) -> None:
    assert tokens.get(*ABOUT) is None
    assert tokens.stamp(*ABOUT) is None
    assert not tokens.remove(*ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_token_of_another_server_is_not_found(tokens: Tokens) -> None:
    tokens.put(b"x", *ABOUT)
    assert tokens.get("oauth", ABOUT[1], "https://elsewhere.example/mcp") is None


def test_file_that_was_put_in_the_place_of_another_does_not_open(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"of one", "oauth", "one", "u")
    (one,) = (tmp_path / "tokens").iterdir()
    tokens.put(b"of two", "oauth", "two", "u")
    (two,) = set((tmp_path / "tokens").iterdir()) - {one}
    two.write_bytes(one.read_bytes())
    with pytest.raises(VaultError, match=f"{two.name}.*about something else"):
        tokens.get("oauth", "two", "u")


def test_new_token_takes_the_place_of_the_old_and_changes_the_stamp(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"old", *ABOUT)
    before = tokens.stamp(*ABOUT)
    tokens.put(b"new", *ABOUT)
    assert tokens.stamp(*ABOUT) != before
    assert tokens.get(*ABOUT) == b"new"
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    assert tokens.remove(*ABOUT)
    assert tokens.get(*ABOUT) is None


def test_token_of_an_older_key_is_sealed_again_with_the_current_one(tmp_path: Path) -> None:
    old, new = keys.generate(), keys.generate()
    Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": old}).put(b"x", *ABOUT)
    assert Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": f"{new},{old}"}).get(*ABOUT) == b"x"
    assert Tokens.at(tmp_path, {"HUTCH_MASTER_KEY": new}).get(*ABOUT) == b"x"


def test_token_of_a_key_that_was_added_meanwhile_opens(tmp_path: Path) -> None:
    early = Tokens.at(tmp_path, {})
    early.put(b"first", "oauth", "a")
    late = keys.add(tmp_path, {})
    Tokens.at(tmp_path, {}).put(b"second", "oauth", "a")
    assert early.master_ids() == [late.current.id]
    assert early.get("oauth", "a") == b"second"


def test_lost_master_key_is_named_with_the_file(tmp_path: Path) -> None:
    Tokens.at(tmp_path, {}).put(b"x", *ABOUT)
    (tmp_path / "master.key").unlink()
    with pytest.raises(VaultError, match=r"\.sealed: It is sealed with the master key"):
        Tokens.at(tmp_path, {}).get(*ABOUT)


def test_file_that_others_may_read_is_refused(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"x", *ABOUT)
    (file,) = (tmp_path / "tokens").iterdir()
    file.chmod(0o644)
    with pytest.raises(VaultError, match=r"0644.*chmod 600"):
        tokens.get(*ABOUT)


def test_folder_that_others_may_enter_is_closed_and_told_of(
    tokens: Tokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokens").mkdir(mode=0o755)
    with caplog.at_level(logging.WARNING):
        tokens.put(b"x", *ABOUT)
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    assert "could be entered by others" in caplog.text


def test_what_is_no_sealed_file_is_named(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put(b"x", *ABOUT)
    (file,) = (tmp_path / "tokens").iterdir()
    for content in (b"", b"\xff", b"hello"):
        file.write_bytes(content)
        with pytest.raises(VaultError, match=file.name):
            tokens.get(*ABOUT)


def test_secrets_do_not_show(tokens: Tokens) -> None:
    tokens.put(b"s3cret", *ABOUT)
    assert "s3cret" not in repr(tokens)
