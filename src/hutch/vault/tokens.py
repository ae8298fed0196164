"""Tokens of other services, kept sealed: one file each, for the owner alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from hutch.errors import VaultError
from hutch.vault import files, keys, sealing

FOLDER = "tokens"


class Tokens:
    """Secrets by what they are about, such as ("oauth", "github", "https://…").

    No master key is made or read before the first token is.
    """

    def __init__(self, folder: Path, master: Callable[[], keys.MasterKeys]) -> None:
        self._folder = folder
        self._load = master

    @classmethod
    def at(cls, home: Path, environ: Mapping[str, str]) -> Tokens:
        """Those in HUTCH_HOME."""
        return cls(home / FOLDER, lambda: keys.load(home, environ))

    def get(self, *about: str) -> bytes | None:
        """Raises VaultError, which names the file, when there is one that does not open."""
        file = self._file(about)
        sealed = files.read(file)
        if sealed is None:
            return None
        try:
            text = sealed.decode("ascii")
            data = self._unseal(text, about)
            if not sealing.is_current(self._keys, text):
                self.put(data, *about)
            return data
        except UnicodeDecodeError:
            raise VaultError(f"{file}: The sealed text is not as it was written.") from None
        except VaultError as error:
            raise VaultError(f"{file}: {error.message}", remedy=error.remedy) from None

    def put(self, data: bytes, *about: str) -> None:
        """Raises VaultError."""
        files.private_folder(self._folder)
        files.write(self._file(about), f"{sealing.seal(self._keys, data, *about)}\n".encode())

    def remove(self, *about: str) -> bool:
        """Whether there was one."""
        file = self._file(about)
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise VaultError(f"{file}: cannot be removed: {error.strerror}.") from None
        return True

    def stamp(self, *about: str) -> tuple[int, int] | None:
        """Changes whenever the token does, whoever changed it; None if there is none. Opens nothing."""
        try:
            found = self._file(about).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def master_ids(self) -> list[str]:
        """The master key of each token that there is. Opens nothing."""
        found = [files.read(file) for file in sorted(self._folder.glob("*.sealed"))]
        return [sealing.key_id(text.decode("ascii", "replace")) for text in found if text is not None]

    def _unseal(self, text: str, about: tuple[str, ...]) -> bytes:
        try:
            return sealing.unseal(self._keys, text, *about)
        except sealing.KeyMissing:
            # Somebody may have added a master key since, and sealed this with it.
            del self._keys
            return sealing.unseal(self._keys, text, *about)

    @cached_property
    def _keys(self) -> keys.MasterKeys:
        return self._load()

    def _file(self, about: tuple[str, ...]) -> Path:
        """Readable, as far as a file's name may be, and never another's."""
        digest = hashlib.sha256("\0".join(about).encode("utf-8", "surrogatepass")).hexdigest()[:24]
        label = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(about[:2]))[:40].strip("-")
        return self._folder / f"{label}-{digest}.sealed"

    def __repr__(self) -> str:
        return f"Tokens({str(self._folder)!r})"
