from __future__ import annotations

import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hutch.errors import VaultError
from hutch.vault import keys


def test_first_start_makes_a_key_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    made = keys.load(home, {})
    assert (home / "master.key").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert keys.load(home, {}).current.secret == made.current.secret
    assert [each.name for each in home.iterdir()] == ["master.key"]


def test_key_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys.load(tmp_path, {})
    finally:
        os.umask(before)
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_starts_at_the_same_time_agree_on_one_key(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[bytes] = []

    def start() -> None:
        barrier.wait()
        found.append(keys.load(tmp_path, {}).current.secret)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_variable_beats_the_file_and_makes_none(tmp_path: Path) -> None:
    text = keys.generate()
    loaded = keys.load(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert loaded.current.secret == base64.b64decode(text)
    assert list(tmp_path.iterdir()) == []


def test_first_of_several_keys_is_current_and_all_are_found(tmp_path: Path) -> None:
    new, old = keys.generate(), keys.generate()
    loaded = keys.load(tmp_path, {"HUTCH_MASTER_KEY": f" {new} ,{old}"})
    assert loaded.current.secret == base64.b64decode(new)
    old_key = keys.MasterKey(base64.b64decode(old))
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
        (",", "there is no key in it"),
    ],
)
def test_bad_key_is_named_and_never_shown(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(VaultError) as caught:
        keys.load(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert expected in str(caught.value)
    assert "HUTCH_MASTER_KEY" in str(caught.value)
    assert "zzz" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_file_that_others_may_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    keys.load(tmp_path, {})
    file = tmp_path / "master.key"
    file.chmod(mode)
    with pytest.raises(VaultError, match=f"{mode:04o}.*chmod 600"):
        keys.load(tmp_path, {})


def test_what_is_no_key_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    for content in (b"", b"\xff\xfe", b"hello\n"):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(VaultError, match=r"master\.key"):
            keys.load(tmp_path, {})
        assert file.read_bytes() == content


def test_pipe_in_the_place_of_the_file_does_not_hold_us_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "master.key", 0o600)
    with pytest.raises(VaultError, match="no ordinary file"):
        keys.load(tmp_path, {})


def test_secrets_do_not_show(tmp_path: Path) -> None:
    text = keys.generate()
    loaded = keys.load(tmp_path, {"HUTCH_MASTER_KEY": text})
    secret = base64.b64decode(text)
    for shown in (repr(loaded), str(loaded), repr(loaded.current), str(loaded.current)):
        assert text not in shown
        assert secret.hex() not in shown
        assert loaded.current.id in shown


# --- replacing ---


def test_a_new_master_key_comes_in_front_of_those_in_the_file(tmp_path: Path) -> None:
    before = keys.load(tmp_path, {})
    after = keys.add(tmp_path, {})
    assert after.ids == [after.current.id, before.current.id]
    assert keys.load(tmp_path, {}).ids == after.ids
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_several_who_add_one_at_the_same_time_lose_none(tmp_path: Path) -> None:
    keys.load(tmp_path, {})
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: keys.add(tmp_path, {}), range(8)))
    ids = keys.load(tmp_path, {}).ids
    assert len(ids) == 9
    assert {each.current.id for each in added} <= set(ids)


def test_keys_in_the_variable_are_not_ours_to_change(tmp_path: Path) -> None:
    text = keys.generate()
    with pytest.raises(VaultError, match="which only you can change") as caught:
        keys.add(tmp_path, {"HUTCH_MASTER_KEY": text})
    assert text not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_where_none_may_be_made_a_missing_key_is_told(tmp_path: Path) -> None:
    with pytest.raises(VaultError, match=r"There is no master key: HUTCH_MASTER_KEY is not set"):
        keys.load(tmp_path, {}, make=False)
    assert list(tmp_path.iterdir()) == []
