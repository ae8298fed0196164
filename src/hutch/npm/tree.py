"""A package's files with all that it needs: measured, checked, made read-only, thrown away."""

# A tree may have a hundred thousand files, and paths as objects would take longer than the files.
# ruff: noqa: PTH101, PTH102, PTH115, PTH117, PTH123

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Excess = Literal["size", "files"]


class TooMuch(Exception):
    """There are more files, or more bytes in them, than allowed."""

    def __init__(self, of: Excess) -> None:
        super().__init__(of)
        self.of = of


class Unsafe(Exception):
    """There is something in it that is neither a file nor a folder nor a link to one of them."""


def measure(folder: Path, size: int, files: int) -> tuple[int, int]:
    """Bytes and files below a folder that may change meanwhile. Raises TooMuch at the first too many."""
    bytes_found = files_found = 0
    for entry in _entries(str(folder), changing=True):
        if entry.is_dir(follow_symlinks=False):
            continue
        files_found += 1
        try:
            bytes_found += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
        if files_found > files:
            raise TooMuch("files")
        if bytes_found > size:
            raise TooMuch("size")
    return bytes_found, files_found


def seal(folder: Path, size: int, files: int) -> tuple[int, int]:
    """Makes everything below it read-only, and gives its bytes and files.

    Not the folder itself, which is yet to be moved. Raises TooMuch, and Unsafe for a link that leads out.
    """
    root = os.path.realpath(folder)
    bytes_found = files_found = 0
    for entry in _entries(root):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.chmod(entry.path, 0o555)
            continue
        if stat.S_ISLNK(status.st_mode):
            _check_link(entry.path, root)
        elif not stat.S_ISREG(status.st_mode):
            raise Unsafe(entry.name)
        elif stat.S_IMODE(status.st_mode) != (mode := _sealed_mode(status)):
            os.chmod(entry.path, mode)
        bytes_found += status.st_size
        files_found += 1
        if files_found > files:
            raise TooMuch("files")
        if bytes_found > size:
            raise TooMuch("size")
    return bytes_found, files_found


def _sealed_mode(status: os.stat_result) -> int:
    return 0o555 if status.st_mode & 0o100 else 0o444


def _check_link(path: str, root: str) -> None:
    target = os.readlink(path)
    if os.path.isabs(target) or not os.path.realpath(path).startswith(f"{root}/"):
        raise Unsafe(path)


def link(source: Path, target: Path) -> int:
    """Makes a folder of the same files, without copying them but for programs. Gives how many those are.

    The installer wants to write to programs, if only to make them executable. Raises OSError if any cannot
    be had.
    """
    root = str(source)
    programs = 0
    target.mkdir(parents=True)
    for entry in _entries(root):
        place = f"{target}{entry.path[len(root) :]}"
        if entry.is_dir(follow_symlinks=False):
            os.mkdir(place)
        elif entry.stat(follow_symlinks=False).st_mode & 0o100:
            shutil.copyfile(entry.path, place)
            os.chmod(place, 0o755)
            programs += 1
        else:
            os.link(entry.path, place, follow_symlinks=False)
    return programs


def own_bytes(folder: Path) -> int:
    """How much removing it would free: files that other trees share stay."""
    size = 0
    if folder.is_symlink():
        return size
    for entry in _entries(str(folder), changing=True):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                size += status.st_size
    return size


def discard(folder: Path) -> None:
    """Removes a folder, also one that was sealed. What is not there is no error."""
    if folder.is_symlink():
        folder.unlink()
        return
    try:
        os.chmod(folder, 0o700)
    except FileNotFoundError:
        return
    for entry in _entries(str(folder), changing=True):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _entries(folder: str, *, changing: bool = False) -> Iterator[os.DirEntry[str]]:
    """All below a folder, a folder before what is in it. In one that is `changing`, any may be gone."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:
            if not changing:
                raise


def digest(folder: Path) -> str:
    """What is in a tree, as one hash."""
    root = str(folder)
    total = hashlib.sha256()
    for entry in sorted(_entries(root), key=lambda entry: entry.path):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{os.path.relpath(entry.path, root)}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
