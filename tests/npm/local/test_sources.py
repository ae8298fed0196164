"""Tests of copying packages that are not published."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from hutch.errors import InvalidPackage
from hutch.npm.install.process import InstallLimits
from hutch.npm.local.sources import copy_sources, fingerprint, is_local_argument
from hutch.npm.tree import TreeTooLarge

LIMITS = InstallLimits(max_bytes=100_000, max_files=10)


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_archive(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return path


@pytest.mark.parametrize("text", ["./a", "../a", "/a", "~/a", ".", "file:a", "a-1.0.0.tgz", "a.tar.gz"])
def test_path_is_recognised(text: str) -> None:
    assert is_local_argument(text)


@pytest.mark.parametrize("text", ["a", "@a/b", "@a/b@1", "a@file:b", "a.tgz@1"])
def test_package_name_is_not_a_path(text: str) -> None:
    assert not is_local_argument(text)


def test_folder_is_copied_without_dependencies_history_and_secrets(tmp_path: Path) -> None:
    kept = {"package.json": "{}", "src/a.ts": "a", ".github/x.yml": "x"}
    omitted = {"node_modules/x/y.js": "", "src/node_modules/z.js": "", ".git/HEAD": "", ".npmrc": "token"}
    secrets = {".env": "KEY=1", ".env.local": "KEY=2"}
    folder = write_files(tmp_path / "tool", {**kept, **omitted, **secrets})
    (folder / "b.ts").symlink_to("src/a.ts")
    os.mkfifo(folder / "pipe")
    copy_sources(folder, tmp_path / "copy", "./tool", LIMITS)
    assert files_in(tmp_path / "copy") == {**kept, "b.ts": "a"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "src/../../outside", "link"])
def test_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    write_files(tmp_path, {"outside": "secret", "tool/src/a.js": ""})
    (tmp_path / "tool" / "link").symlink_to(target)
    with pytest.raises(InvalidPackage, match=r"^\./tool: link is a link that leads out of the package"):
        copy_sources(tmp_path / "tool", tmp_path / "copy", "./tool", LIMITS)


@pytest.mark.parametrize(
    ("files", "limit"),
    [({"a": "x" * 100_001}, "size"), ({str(number): "" for number in range(11)}, "files")],
)
def test_folder_that_exceeds_a_limit_is_refused(tmp_path: Path, files: dict[str, str], limit: str) -> None:
    with pytest.raises(TreeTooLarge) as raised:
        copy_sources(write_files(tmp_path / "tool", files), tmp_path / "copy", "./tool", LIMITS)
    assert raised.value.limit == limit


def test_archive_is_unpacked_without_its_first_folder_and_links(tmp_path: Path) -> None:
    link = tarfile.TarInfo("package/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = write_archive(tmp_path / "a.tgz", ("package/package.json", b"{}"), ("package/d/a.js", b"1"), link)
    copy_sources(path, tmp_path / "copy", "a.tgz", LIMITS)
    assert files_in(tmp_path / "copy") == {"package.json": "{}", "d/a.js": "1"}
    assert not (tmp_path / "copy" / "link").is_symlink()


@pytest.mark.parametrize("name", ["/etc/x", "package/../../x"])
def test_archive_with_a_file_outside_is_refused(tmp_path: Path, name: str) -> None:
    path = write_archive(tmp_path / "a.tgz", (name, b""))
    with pytest.raises(InvalidPackage, match=r"^a\.tgz: has a file outside of the package"):
        copy_sources(path, tmp_path / "copy", "a.tgz", LIMITS)


def test_archive_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("package/x")
    header.pax_headers = {"comment": "x" * 3_000_000}
    for member in (("package/x", bytes(200_000)), header):
        path = write_archive(tmp_path / "a.tgz", member)
        with pytest.raises(TreeTooLarge):
            copy_sources(path, tmp_path / f"copy-{member is header}", "a.tgz", LIMITS)


@pytest.mark.parametrize("content", [b"hello", b"", b"\x1f\x8b\x08\x00broken"])
def test_file_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(InvalidPackage, match=r"^a\.tgz: is not an archive of `npm pack`"):
        copy_sources(tmp_path / "a.tgz", tmp_path / "copy", "a.tgz", LIMITS)


def test_fingerprint_changes_with_the_files_of_the_package_only(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "tool", {"a.js": "1", "node_modules/x.js": "1"})
    before = fingerprint(folder)
    write_files(folder, {"node_modules/x.js": "22", ".git/index": "1"})
    assert fingerprint(folder) == before
    write_files(folder, {"a.js": "22"})
    changed = fingerprint(folder)
    write_files(folder, {"src/b.js": ""})
    assert len({before, changed, fingerprint(folder)}) == 3


@pytest.mark.parametrize("name", ["package/" + "a" * 300, "package/" + "a/" * 3_000 + "b"])
def test_archive_with_a_name_that_is_too_long_is_refused(tmp_path: Path, name: str) -> None:
    archive = write_archive(tmp_path / "a.tgz", (name, b""))
    with pytest.raises(InvalidPackage, match="too long"):
        copy_sources(archive, tmp_path / "copy", "a.tgz", LIMITS)


def test_archive_with_endless_headers_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    content = b"12 path=abc\n"
    header.size = len(content)
    block = header.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0")
    archive = tmp_path / "a.tgz"
    archive.write_bytes(gzip.compress(block * 2_000 + b"\0" * 1024))
    with pytest.raises(InvalidPackage, match="too many headers"):
        copy_sources(archive, tmp_path / "copy", "a.tgz", LIMITS)
