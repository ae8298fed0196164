"""Measures, checks, seals, links and deletes the file tree of a package and its dependencies."""

# A tree may have a hundred thousand files; creating a Path for each would take longer than reading them.
# ruff: noqa: PTH101, PTH102, PTH115, PTH117, PTH123

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

TreeLimit = Literal["size", "files"]


class TreeTooLarge(Exception):
    def __init__(self, limit: TreeLimit) -> None:
        super().__init__(limit)
        self.limit = limit


class UnsafeTree(Exception):
    """Raised if a tree contains a special file, or a link that leads out of the tree."""


class Allowance(NamedTuple):
    """Name of files that `measure` does not count, until together they exceed one of these limits."""

    name: str
    max_bytes: int
    max_files: int


def measure(
    folder: Path, max_bytes: int, max_files: int, allowance: Allowance | None = None
) -> tuple[int, int]:
    """Returns the number of bytes and of files below a folder. The files may change meanwhile. Raises
    TreeTooLarge.
    """
    bytes_found = files_found = allowed_bytes = allowed_files = 0
    for entry in _entries(str(folder), changing=True):
        if entry.is_dir(follow_symlinks=False):
            continue
        try:
            size = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
        if (
            allowance is not None
            and entry.name == allowance.name
            and allowed_files < allowance.max_files
            and allowed_bytes + size <= allowance.max_bytes
        ):
            allowed_files += 1
            allowed_bytes += size
            continue
        files_found += 1
        bytes_found += size
        if files_found > max_files:
            raise TreeTooLarge("files")
        if bytes_found > max_bytes:
            raise TreeTooLarge("size")
    return bytes_found, files_found


def seal(folder: Path, max_bytes: int, max_files: int) -> tuple[int, int]:
    """Makes everything below the folder read-only. Returns the number of bytes and of files. The folder
    itself stays writable, because it is moved later. Raises TreeTooLarge and UnsafeTree.
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
            raise UnsafeTree(entry.name)
        elif stat.S_IMODE(status.st_mode) != (mode := _sealed_mode(status)):
            os.chmod(entry.path, mode)
        bytes_found += status.st_size
        files_found += 1
        if files_found > max_files:
            raise TreeTooLarge("files")
        if bytes_found > max_bytes:
            raise TreeTooLarge("size")
    return bytes_found, files_found


def _sealed_mode(status: os.stat_result) -> int:
    return 0o555 if status.st_mode & 0o100 else 0o444


def _check_link(path: str, root: str) -> None:
    target = os.readlink(path)
    if os.path.isabs(target) or not os.path.realpath(path).startswith(f"{root}/"):
        raise UnsafeTree(path)


def link(source: Path, target: Path) -> int:
    """Hard-links a folder. Executable files are copied, because the installer sets their mode, which would
    change the mode of the original file too. Returns the number of copies. Raises OSError if any file cannot
    be read.
    """
    root = str(source)
    programs = 0
    target.mkdir(parents=True)
    for entry in _entries(root):
        target_path = f"{target}{entry.path[len(root) :]}"
        if entry.is_dir(follow_symlinks=False):
            os.mkdir(target_path)
        elif not entry.is_symlink() and entry.stat(follow_symlinks=False).st_mode & 0o100:
            shutil.copyfile(entry.path, target_path)
            os.chmod(target_path, 0o755)
            programs += 1
        else:
            os.link(entry.path, target_path, follow_symlinks=False)
    return programs


def exclusive_bytes(folder: Path) -> int:
    """Returns how many bytes would be freed by removing the folder. Files that other trees share are not
    counted.
    """
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
    """Removes a folder, even if it is sealed. A missing folder is not an error."""
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
    """Yields everything below a folder, parents first. With `changing`, entries may disappear meanwhile."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:
            if not changing:
                raise


def digest(folder: Path) -> str:
    root = str(folder)
    total = hashlib.sha256()
    for entry in sorted(_entries(root), key=lambda entry: entry.path):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{os.path.relpath(entry.path, root)}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
