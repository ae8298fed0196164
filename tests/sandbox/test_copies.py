"""Copies of libraries: where they are, and that they are made once for each version."""

from __future__ import annotations

from pathlib import Path

import pytest

from hutch.sandbox import copies


def test_each_library_is_below_the_folder_at_its_own_path_and_keeps_its_mode(tmp_path: Path) -> None:
    loader, plain = tmp_path / "lib64" / "ld.so", tmp_path / "lib" / "deep" / "libc.so"
    for file, mode in ((loader, 0o755), (plain, 0o644)):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
        file.chmod(mode)
    made = copies.make((str(loader), str(plain)), tmp_path / "cache")
    for file, mode in ((loader, 0o755), (plain, 0o644)):
        copy = Path(made + str(file))
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == (file.name, mode)
    assert Path(made).stat().st_mode & 0o777 == 0o700


def test_they_are_made_once_for_each_version(tmp_path: Path) -> None:
    library = tmp_path / "libc.so"
    library.write_text("one")
    place = tmp_path / "cache"
    first = copies.make((str(library),), place)
    before = Path(first + str(library)).stat().st_ino
    assert copies.make((str(library),), place) == first
    assert Path(first + str(library)).stat().st_ino == before
    library.write_text("another")
    second = copies.make((str(library),), place)
    assert Path(second + str(library)).read_text() == "another"
    assert Path(first + str(library)).read_text() == "one"


def test_a_folder_that_others_may_write_is_not_taken(tmp_path: Path) -> None:
    library = tmp_path / "libc.so"
    library.write_text("one")
    made = copies.make((str(library),), tmp_path / "cache")
    Path(made).chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        copies.make((str(library),), tmp_path / "cache")


def test_what_cannot_be_copied_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copies.make((str(tmp_path / "absent.so"),), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_below_another_needs_no_mount_of_its_own() -> None:
    arm = ("/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6", "/library/libx.so")
    assert copies.folders(arm) == ("/lib", "/library")
    debian = ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6")
    assert copies.folders(debian) == ("/lib/x86_64-linux-gnu", "/lib64")
