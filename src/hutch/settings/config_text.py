"""Content of a configuration file. The file is read only once, so that the content that is used is the
content that was checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from hutch.errors import ConfigError

MAX_FILE_BYTES = 4 * 1024 * 1024


class ConfigText(msgspec.Struct, frozen=True):
    path: Path
    data: bytes

    @property
    def digest(self) -> str:
        # Import hashlib only when it is needed, because it loads OpenSSL.
        import hashlib

        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """The content as text. Raises ConfigError with the line if it is not UTF-8."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise ConfigError(str(self.path), line, "", "is not UTF-8 text.") from None


def read_config_text(path: Path, *, regular: bool = True) -> ConfigText | None:
    """Reads a file. Returns None if it does not exist. Raises ConfigError if it cannot be read.

    Without `regular`, the file may also be a pipe, which is read to its end.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting if regular else None) as stream:
            if regular and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(str(path), None, "", "is not a regular file.")
            data = stream.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(str(path), None, "", f"cannot be read: {error.strerror}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), None, "", f"is larger than {MAX_FILE_BYTES} bytes.")
    return ConfigText(path, data)


def _open_without_waiting(path: str, flags: int) -> int:
    # Use O_NONBLOCK, because opening a FIFO would otherwise wait for a writer.
    return os.open(path, flags | os.O_NONBLOCK)
