"""The file with the list of trusted folders, also if the file is damaged."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hutch.cli.support.project_files import describe_file
from hutch.cli.support.trust import DamagedTrustStore, TrustStore, check
from hutch.errors import InvalidInput, VaultError
from hutch.settings.config_text import ConfigText

NAME = ".toolscript.json"


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "home")


def source(folder: Path, text: str = '{"mcpServers": {"a": {"command": "x"}}}') -> ConfigText:
    return ConfigText(folder / NAME, text.encode())


def add(store: TrustStore, folder: Path) -> None:
    store.add(folder, [describe_file(NAME, source(folder))])


def test_file_is_private_and_holds_no_content(store: TrustStore, tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "env": {"TOKEN": "inline-secret"}}}}'
    store.add(tmp_path, [describe_file(NAME, source(tmp_path, text))])
    assert stat.S_IMODE(store.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.file.parent.stat().st_mode) == 0o700
    assert b"inline-secret" not in store.file.read_bytes()
    assert [path.name for path in store.file.parent.iterdir()] == ["trust.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 2, "folders": {}}', b'{"folders": {"/": 1}}', b"[" * 100_000]
)
def test_damaged_file_trusts_nothing_and_is_replaced(
    content: bytes, store: TrustStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, tmp_path)
    store.file.write_bytes(content)
    with pytest.raises(DamagedTrustStore):
        store.folders()
    assert not check(tmp_path, NAME, source(tmp_path), store.file.parent)
    assert f"{store.file} is damaged, so no folder is trusted" in caplog.text
    add(store, tmp_path)
    assert check(tmp_path, NAME, source(tmp_path), store.file.parent)


def test_file_that_others_can_write_trusts_nothing(store: TrustStore, tmp_path: Path) -> None:
    add(store, tmp_path)
    store.file.chmod(0o666)
    assert not check(tmp_path, NAME, source(tmp_path), store.file.parent)
    with pytest.raises(VaultError, match="other users have access"):
        add(store, tmp_path)


def test_file_of_a_folder_that_was_not_there_is_not_trusted(store: TrustStore, tmp_path: Path) -> None:
    """When the user trusted the folder, it did not contain this file, so the user has not seen the file."""
    add(store, tmp_path)
    settings = ConfigText(tmp_path / "hutch.toml", b"timeout_ms = 1\n")
    assert not check(tmp_path, "hutch.toml", settings, store.file.parent)


def test_folder_that_is_not_utf8_cannot_be_stored(store: TrustStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        add(store, tmp_path / "\udcff")


def test_removing_another_folder_changes_nothing(store: TrustStore, tmp_path: Path) -> None:
    assert not store.remove(tmp_path)
    add(store, tmp_path)
    assert not store.remove(tmp_path / "other")
    assert store.remove(tmp_path)
    assert store.folders() == {}
