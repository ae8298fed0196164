from __future__ import annotations

import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hutch.errors import VaultError
from hutch.vault import crypto


def test_first_start_creates_a_private_key_file(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    made = crypto.load_master_keys(home, {})
    assert (home / "master.key").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert crypto.load_master_keys(home, {}).current.secret == made.current.secret
    assert [each.name for each in home.iterdir()] == ["master.key"]


def test_key_file_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        crypto.load_master_keys(tmp_path, {})
    finally:
        os.umask(before)
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_concurrent_first_starts_agree_on_one_key(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[bytes] = []

    def start() -> None:
        barrier.wait()
        found.append(crypto.load_master_keys(tmp_path, {}).current.secret)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_variable_overrides_the_file_and_creates_none(tmp_path: Path) -> None:
    text = crypto.generate_master_key()
    loaded = crypto.load_master_keys(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert loaded.current.secret == base64.b64decode(text)
    assert list(tmp_path.iterdir()) == []


def test_first_of_several_keys_is_current_and_all_are_found(tmp_path: Path) -> None:
    new, old = crypto.generate_master_key(), crypto.generate_master_key()
    loaded = crypto.load_master_keys(tmp_path, {"HUTCH_MASTER_KEY": f" {new} ,{old}"})
    assert loaded.current.secret == base64.b64decode(new)
    old_key = crypto.MasterKey(base64.b64decode(old))
    found = loaded.find(old_key.id)
    assert found is not None
    assert found.secret == old_key.secret
    assert loaded.find("000000000000") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not base64!", "key 1: expected base64 of 32 bytes"),
        (base64.b64encode(b"short").decode(), "key 1: expected 32 bytes, got 5"),
        (f"{base64.b64encode(b'x' * 32).decode()},zzz", "key 2: expected base64"),
        (",", "contains no key"),
    ],
)
def test_invalid_key_is_reported_and_never_shown(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(VaultError) as caught:
        crypto.load_master_keys(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert expected in str(caught.value)
    assert "HUTCH_MASTER_KEY" in str(caught.value)
    assert "zzz" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_accessible_key_file_is_rejected_with_a_remedy(tmp_path: Path, mode: int) -> None:
    crypto.load_master_keys(tmp_path, {})
    file = tmp_path / "master.key"
    file.chmod(mode)
    with pytest.raises(VaultError, match=f"{mode:04o}.*chmod 600"):
        crypto.load_master_keys(tmp_path, {})


def test_invalid_key_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    for content in (b"", b"\xff\xfe", b"hello\n"):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(VaultError, match=r"master\.key"):
            crypto.load_master_keys(tmp_path, {})
        assert file.read_bytes() == content


def test_fifo_in_place_of_the_key_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "master.key", 0o600)
    with pytest.raises(VaultError, match="not a regular file"):
        crypto.load_master_keys(tmp_path, {})


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    text = crypto.generate_master_key()
    loaded = crypto.load_master_keys(tmp_path, {"HUTCH_MASTER_KEY": text})
    secret = base64.b64decode(text)
    for shown in (repr(loaded), str(loaded), repr(loaded.current), str(loaded.current)):
        assert text not in shown
        assert secret.hex() not in shown
        assert loaded.current.id in shown


# --- adding a key ---


def test_new_master_key_is_added_in_front(tmp_path: Path) -> None:
    before = crypto.load_master_keys(tmp_path, {})
    after = crypto.add_master_key(tmp_path, {})
    assert after.ids == [after.current.id, before.current.id]
    assert crypto.load_master_keys(tmp_path, {}).ids == after.ids
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_concurrently_added_keys_are_all_kept(tmp_path: Path) -> None:
    crypto.load_master_keys(tmp_path, {})
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: crypto.add_master_key(tmp_path, {}), range(8)))
    ids = crypto.load_master_keys(tmp_path, {}).ids
    assert len(ids) == 9
    assert {each.current.id for each in added} <= set(ids)


def test_keys_in_the_variable_cannot_be_changed(tmp_path: Path) -> None:
    text = crypto.generate_master_key()
    with pytest.raises(VaultError, match="which only you can change") as caught:
        crypto.add_master_key(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert text not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_key_is_reported_if_none_may_be_created(tmp_path: Path) -> None:
    with pytest.raises(VaultError, match=r"There is no master key: HUTCH_MASTER_KEY is not set"):
        crypto.load_master_keys(tmp_path, {}, create=False)
    assert list(tmp_path.iterdir()) == []
