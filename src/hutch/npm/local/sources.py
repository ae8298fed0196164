"""Copies the files of an unpublished package from its folder or archive."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hutch.errors import InvalidPackage
from hutch.npm.install.process import InstallLimits
from hutch.npm.tree import TreeTooLarge
from hutch.settings import MIB
from hutch.text import cut

ARCHIVE_ENDINGS = (".tgz", ".tar.gz")
_SCHEME = "file:"
# Names that are not copied, because they are not part of a package: dependencies, version histories, and
# files with secrets.
_OMITTED = frozenset({"node_modules", ".git", ".hg", ".svn", ".npmrc", ".env"})
_TAR_BLOCK = 512


def is_local_argument(text: str) -> bool:
    """Returns True if npm would treat a command-line argument as a path and not as the name of a package."""
    return (
        text.startswith(("./", "../", "/", "~/", _SCHEME))
        or text in (".", "..", "~")
        or text.endswith(ARCHIVE_ENDINGS)
    )


def local_path(text: str) -> Path:
    """Returns the folder or archive that an argument names. Raises InvalidPackage if there is none."""
    path = Path(text.removeprefix(_SCHEME)).expanduser()
    if path.is_dir() or (path.is_file() and path.name.endswith(ARCHIVE_ENDINGS)):
        return path
    if path.exists():
        raise InvalidPackage(text, "expected a folder with package.json, or an archive of `npm pack` (.tgz)")
    raise InvalidPackage(text, "there is no such file or folder")


def fingerprint(path: Path) -> int:
    """Returns a number that changes when a file of the package changes."""
    if path.is_dir():
        states = [(entry.path, _state(entry)) for entry in _entries(path)]
        return hash(frozenset(states))
    try:
        status = path.stat()
    except OSError:
        return 0
    return hash((status.st_mtime_ns, status.st_size))


def _state(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0, 0
    is_folder = stat.S_ISDIR(status.st_mode)
    return (0, 0) if is_folder else (status.st_mtime_ns, status.st_size)


def copy_sources(path: Path, target: Path, shown: str, limits: InstallLimits) -> None:
    """Copies the files of a folder or archive to a new folder. Raises InvalidPackage and TreeTooLarge."""
    target.mkdir()
    if path.is_dir():
        _copy_folder(path, target, shown, limits)
    else:
        _unpack(path, target, shown, limits)


class _Count:
    def __init__(self, limits: InstallLimits) -> None:
        self._limits = limits
        self._bytes = self._files = 0

    def add(self, size: int) -> None:
        self._bytes += size
        self._files += 1
        if self._bytes > self._limits.max_bytes:
            raise TreeTooLarge("size")
        if self._files > self._limits.max_files:
            raise TreeTooLarge("files")


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the files and folders of a package, parents first. Files may be changed or removed meanwhile."""
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name in _OMITTED or entry.name.startswith(".env."):
                        continue
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:
            continue


def _checked_link(link: Path, folder: Path, shown: str) -> Path:
    """Returns the target of a link. Raises InvalidPackage if a guest could read other files through it."""
    target = link.readlink()
    # Check `_is_circular` before calling `resolve`, because Python 3.11 cannot resolve circular links.
    if target.is_absolute() or _is_circular(link) or not link.resolve().is_relative_to(folder.resolve()):
        name = link.relative_to(folder)
        message = f"{name} is a link that leads out of the package or nowhere. Replace it by a file"
        raise InvalidPackage(shown, message)
    return target


def _is_circular(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _copy_folder(folder: Path, target: Path, shown: str, limits: InstallLimits) -> None:
    count = _Count(limits)
    for entry in _entries(folder):
        copy = target / Path(entry.path).relative_to(folder)
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                copy.mkdir()
            elif stat.S_ISLNK(status.st_mode):
                copy.symlink_to(_checked_link(Path(entry.path), folder, shown))
            elif stat.S_ISREG(status.st_mode):
                count.add(status.st_size)
                shutil.copyfile(entry.path, copy, follow_symlinks=False)
        except FileNotFoundError:
            continue  # an editor has just replaced the file


# --- archives ---


class _BoundedGzip(gzip.GzipFile):
    """Decompresses up to a limit, because a small archive may contain gigabytes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path)
        self._remaining = max_bytes

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._remaining -= len(data)
        if self._remaining < 0:
            raise TreeTooLarge("size")
        return data


def _unpack(path: Path, target: Path, shown: str, limits: InstallLimits) -> None:
    """Unpacks an archive like npm: without its first folder, and without links and special files."""
    count = _Count(limits)
    max_stream = limits.max_bytes + 4 * _TAR_BLOCK * limits.max_files + MIB
    try:
        with (
            _BoundedGzip(path, max_stream) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in archive:
                _unpack_member(archive, member, target, shown, count)
    except RecursionError:
        raise InvalidPackage(shown, "is not an archive of `npm pack`: it has too many headers") from None
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidPackage(shown, f"is not an archive of `npm pack`: {error}") from None


def _unpack_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, shown: str, count: _Count
) -> None:
    parts = PurePosixPath(member.name).parts
    if member.name.startswith("/") or ".." in parts or "\0" in member.name:
        raise InvalidPackage(shown, f"has a file outside of the package: {member.name!r}")
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or len(parts) < 2:
        return
    count.add(member.size)
    copy = target.joinpath(*parts[1:])
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("wb") as file:
            shutil.copyfileobj(content, file)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise InvalidPackage(shown, f"has a file and a folder of the same name: {member.name!r}") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise InvalidPackage(shown, f"has a name that is too long: {cut(member.name, 100)!r}") from None
