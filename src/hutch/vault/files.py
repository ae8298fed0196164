"""Files that only their owner may read: made whole or not at all."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hutch.errors import VaultError

logger = logging.getLogger("hutch.vault")


def private_folder(folder: Path) -> None:
    """Makes sure that there is such a folder and that it is ours alone. Raises VaultError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            logger.warning("%s could be entered by others; it is now for its owner alone", folder)
            folder.chmod(0o700)
    except OSError as error:
        raise VaultError(f"{folder}: cannot be a folder for secrets: {error.strerror}.") from None


def write(file: Path, data: bytes) -> None:
    """Puts `data` in the place of what was there, at once. Raises VaultError."""
    aside = _aside(file, data)
    try:
        aside.replace(file)
        _settle(file.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None


def write_first(file: Path, data: bytes) -> None:
    """Writes `data` unless somebody else was first, whose file then stays. Raises VaultError."""
    aside = _aside(file, data)
    try:
        # Unlike a rename, a link never takes another's place.
        with suppress(FileExistsError):
            os.link(aside, file)
        _settle(file.parent)
    except OSError as error:
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Whoever else wants this folder alone waits meanwhile, in other processes too. Raises VaultError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise VaultError(f"{folder}: cannot be opened: {error.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read(file: Path) -> bytes | None:
    """What is in the file; None if there is none. Raises VaultError, also if others may read or write it."""
    try:
        # What is no file, but a pipe that nobody writes to, must not hold us up.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            _check(file, os.fstat(opened.fileno()))
            return opened.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VaultError(f"{file}: cannot be read: {error.strerror}.") from None


def _check(file: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise VaultError(f"{file}: is no ordinary file.")
    if mode & 0o077:
        raise VaultError(
            f"{file}: others may use it (its mode is {mode:04o}).",
            remedy=f"Run `chmod 600 {file}`, and if others could read it, replace what is in it.",
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise VaultError(f"{file}: belongs to another user.", remedy="Run `chown` on it, or remove it.")


def _settle(folder: Path) -> None:
    """A name in it is on the disk like what it names: what is sealed with a key is not to outlive that."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _aside(file: Path, data: bytes) -> Path:
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as opened:
            # Whatever the umask is.
            os.fchmod(opened.fileno(), 0o600)
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None
    return aside
