"""Files that only their owner can read, written atomically."""

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


def ensure_private_folder(folder: Path) -> None:
    """Creates the folder, or removes the access of other users to an existing folder. Raises VaultError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            logger.warning("%s was accessible to other users; its mode is now 700", folder)
            folder.chmod(0o700)
    except OSError as error:
        raise VaultError(f"{folder}: cannot be a folder for secrets: {error.strerror}.") from None


def write(file: Path, data: bytes) -> None:
    """Replaces the file atomically. Raises VaultError."""
    temporary = _write_temporary(file, data)
    try:
        temporary.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None


def write_if_missing(file: Path, data: bytes) -> None:
    """Writes the file unless it already exists. Raises VaultError."""
    temporary = _write_temporary(file, data)
    try:
        # Unlike a rename, a link never replaces an existing file.
        with suppress(FileExistsError):
            os.link(temporary, file)
        _sync_folder(file.parent)
    except OSError as error:
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on the folder, which other processes respect too. Raises VaultError."""
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
    """Returns the content of a file, or None if it does not exist. Raises VaultError if it cannot be read or
    other users have access to it.
    """
    try:
        # O_NONBLOCK, because opening a FIFO without a writer would block.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            _check_access(file, os.fstat(stream.fileno()))
            return stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VaultError(f"{file}: cannot be read: {error.strerror}.") from None


def _check_access(file: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise VaultError(f"{file}: is not a regular file.")
    if mode & 0o077:
        raise VaultError(
            f"{file}: other users have access to it (its mode is {mode:04o}).",
            remedy=f"Run `chmod 600 {file}`, and replace its secrets if other users could read them.",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise VaultError(f"{file}: belongs to another user.", remedy="Run `chown` on it, or remove it.")


def _sync_folder(folder: Path) -> None:
    """Writes the folder's entries to disk. The file of a key must be durable before anything is encrypted
    with the key.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_temporary(file: Path, data: bytes) -> Path:
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            # Set the mode again, because the umask may have removed permissions.
            os.fchmod(stream.fileno(), 0o600)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise VaultError(f"{file}: cannot be written: {error.strerror}.") from None
    return temporary
