"""Copies of system libraries for jails: their paths and versions, and the repair of damaged copies."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hutch.sandbox.jail.libraries import LibraryCopies, find_copies, make_copies


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[str, ...]:
    loader, plain = tmp_path / "lib64" / "ld.so", tmp_path / "lib" / "deep" / "libc.so"
    for file, mode in ((loader, 0o755), (plain, 0o644)):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
        file.chmod(mode)
    return str(loader), str(plain)


def test_copies_keep_the_paths_and_modes_of_the_libraries(libraries: tuple[str, ...], tmp_path: Path) -> None:
    copies = make_copies(libraries, tmp_path / "cache")
    for library, mode in zip(libraries, (0o755, 0o644), strict=True):
        copy = Path(copies.folder + library)
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == (Path(library).name, mode)
    assert Path(copies.folder).stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [copies.name]


def test_copies_are_made_once_per_version(libraries: tuple[str, ...], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = make_copies(libraries, cache)
    before = Path(first.folder).stat().st_ino
    assert Path(make_copies(libraries, cache).folder).stat().st_ino == before
    Path(libraries[1]).write_text("another")
    second = make_copies(libraries, cache)
    assert Path(second.folder + libraries[1]).read_text() == "another"
    assert Path(first.folder + libraries[1]).read_text() == "libc.so"


@pytest.mark.parametrize("damage", ["gone", "cut short", "a stray file", "others may write"])
def test_damaged_copies_are_replaced(libraries: tuple[str, ...], tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    copies = make_copies(libraries, cache)
    copy = Path(copies.folder + libraries[1])
    if damage == "gone":
        copy.unlink()
    elif damage == "cut short":
        copy.write_text("")
    elif damage == "a stray file":
        (copy.parent / ".nfs0001").touch()
    else:
        Path(copies.folder).chmod(0o777)
    assert copies.are_complete == (damage in ("a stray file", "others may write"))
    assert find_copies(libraries, cache, copies.name) is None
    again = make_copies(libraries, cache)
    assert again.folder == copies.folder
    assert copy.read_text() == "libc.so"
    assert find_copies(libraries, cache, copies.name) is not None
    assert [path.name for path in cache.iterdir()] == [copies.name]


def test_folder_that_others_may_write_is_rejected(libraries: tuple[str, ...], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="not private to this user"):
        make_copies(libraries, cache)


def test_concurrent_copy_by_another_host_is_not_an_error(
    libraries: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    rename = os.rename
    theirs: list[LibraryCopies] = []

    def slow(source: str, target: str | Path) -> None:
        if not theirs and Path(target).name.startswith("libraries-"):
            monkeypatch.setattr(os, "rename", rename)
            theirs.append(make_copies(libraries, cache))
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow)
    assert make_copies(libraries, cache).folder == theirs[0].folder
    assert [path.name for path in cache.iterdir()] == [theirs[0].name]


def test_failed_copy_leaves_nothing_behind(
    libraries: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.jail.libraries.shutil.copy", lambda *_: Path("/nowhere").stat())
    with pytest.raises(FileNotFoundError):
        make_copies(libraries, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_old_versions_and_unfinished_copies_are_removed_after_a_day(
    libraries: tuple[str, ...], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    long_ago = time.time() - 2 * 24 * 60 * 60
    for name in ("libraries-0", ".libraries-0", "other"):
        (cache / name / "lib").mkdir(parents=True)
        os.utime(cache / name, (long_ago, long_ago))
    (cache / "libraries-1").mkdir()
    cache.chmod(0o700)
    copies = make_copies(libraries, cache)
    assert {path.name for path in cache.iterdir()} == {"libraries-1", "other", copies.name}


def test_nested_folder_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    library = str(tmp_path / "lib" / "ld.so")
    below = str(tmp_path / "lib" / "gnu" / "libc.so")
    beside = str(tmp_path / "library" / "libx.so")
    for each in (library, below, beside):
        Path(each).parent.mkdir(parents=True, exist_ok=True)
        Path(each).touch()
    copies = make_copies((library, below, beside), tmp_path / "cache")
    folders = [str(tmp_path / "lib"), str(tmp_path / "library")]
    assert list(copies.mounts()) == [(copies.folder + each, each) for each in folders]
