"""Copies of libraries: where they are, that they are made once for each version, and mended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hutch.sandbox import copies


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[str, ...]:
    loader, plain = tmp_path / "lib64" / "ld.so", tmp_path / "lib" / "deep" / "libc.so"
    for file, mode in ((loader, 0o755), (plain, 0o644)):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
        file.chmod(mode)
    return str(loader), str(plain)


def test_each_library_is_below_the_folder_at_its_own_path_and_keeps_its_mode(
    libraries: tuple[str, ...], tmp_path: Path
) -> None:
    made = copies.make(libraries, tmp_path / "cache")
    for library, mode in zip(libraries, (0o755, 0o644), strict=True):
        copy = Path(made.folder + library)
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == (Path(library).name, mode)
    assert Path(made.folder).stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [made.name]


def test_they_are_made_once_for_each_version(libraries: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "cache"
    first = copies.make(libraries, place)
    before = Path(first.folder).stat().st_ino
    assert Path(copies.make(libraries, place).folder).stat().st_ino == before
    Path(libraries[1]).write_text("another")
    second = copies.make(libraries, place)
    assert Path(second.folder + libraries[1]).read_text() == "another"
    assert Path(first.folder + libraries[1]).read_text() == "libc.so"


@pytest.mark.parametrize("damage", ["gone", "cut short", "a stray file", "others may write"])
def test_what_is_not_as_it_was_made_is_not_taken_and_made_anew(
    libraries: tuple[str, ...], tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "cache"
    made = copies.make(libraries, place)
    copy = Path(made.folder + libraries[1])
    if damage == "gone":
        copy.unlink()
    elif damage == "cut short":
        copy.write_text("")
    elif damage == "a stray file":
        (copy.parent / ".nfs0001").touch()
    else:
        Path(made.folder).chmod(0o777)
    assert made.are_whole == (damage in ("a stray file", "others may write"))
    assert copies.find(libraries, place, made.name) is None
    again = copies.make(libraries, place)
    assert again.folder == made.folder
    assert copy.read_text() == "libc.so"
    assert copies.find(libraries, place, made.name) is not None
    assert [path.name for path in place.iterdir()] == [made.name]


def test_a_place_that_others_may_write_has_none(libraries: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        copies.make(libraries, place)


def test_a_host_that_was_quicker_is_no_failure(
    libraries: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache"
    rename = os.rename
    theirs: list[copies.Copies] = []

    def slow(source: str, target: str | Path) -> None:
        if not theirs and Path(target).name.startswith("libraries-"):
            monkeypatch.setattr(os, "rename", rename)
            theirs.append(copies.make(libraries, place))
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow)
    assert copies.make(libraries, place).folder == theirs[0].folder
    assert [path.name for path in place.iterdir()] == [theirs[0].name]


def test_what_cannot_be_copied_leaves_nothing(
    libraries: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies.shutil, "copy", lambda *_: Path("/nowhere").stat())
    with pytest.raises(FileNotFoundError):
        copies.make(libraries, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_old_versions_and_what_killed_hosts_left_go_after_a_day(
    libraries: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "cache"
    long_ago = time.time() - 2 * 24 * 60 * 60
    for name in ("libraries-0", ".libraries-0", "other"):
        (place / name / "lib").mkdir(parents=True)
        os.utime(place / name, (long_ago, long_ago))
    (place / "libraries-1").mkdir()
    place.chmod(0o700)
    made = copies.make(libraries, place)
    assert {path.name for path in place.iterdir()} == {"libraries-1", "other", made.name}


def test_a_folder_below_another_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    library = str(tmp_path / "lib" / "ld.so")
    below = str(tmp_path / "lib" / "gnu" / "libc.so")
    beside = str(tmp_path / "library" / "libx.so")
    for each in (library, below, beside):
        Path(each).parent.mkdir(parents=True, exist_ok=True)
        Path(each).touch()
    made = copies.make((library, below, beside), tmp_path / "cache")
    folders = [str(tmp_path / "lib"), str(tmp_path / "library")]
    assert list(made.mounts()) == [(made.folder + each, each) for each in folders]
