"""Stores tokens of other services, each encrypted in its own private file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from hutch.errors import VaultError
from hutch.vault import crypto, private_files

FOLDER = "tokens"


class Tokens:
    """Encrypted tokens, identified by a context such as ("oauth", "github", "https://…").

    The master key is loaded when the first token is read or written, and created if there is none.
    """

    def __init__(self, folder: Path, master: Callable[[], crypto.MasterKeys]) -> None:
        self._folder = folder
        self._load = master

    @classmethod
    def at(cls, home: Path, environ: Mapping[str, str]) -> Tokens:
        """Opens the token folder in HUTCH_HOME."""
        return cls(home / FOLDER, lambda: crypto.load_master_keys(home, environ))

    def get(self, *context: str) -> bytes | None:
        """Returns a token, or None if there is none. Raises VaultError that names the file if the token
        cannot be decrypted.
        """
        file = self._file(context)
        encrypted = private_files.read(file)
        if encrypted is None:
            return None
        try:
            text = encrypted.decode("ascii")
            data = self._decrypt(text, context)
            if not crypto.is_current(self._keys, text):
                self.put(data, *context)
            return data
        except UnicodeDecodeError:
            raise VaultError(f"{file}: The encrypted text is corrupt.") from None
        except VaultError as error:
            raise VaultError(f"{file}: {error.message}", remedy=error.remedy) from None

    def put(self, data: bytes, *context: str) -> None:
        private_files.ensure_private_folder(self._folder)
        private_files.write(self._file(context), f"{crypto.encrypt(self._keys, data, *context)}\n".encode())

    def remove(self, *context: str) -> bool:
        """Deletes a token. Returns False if there was none."""
        file = self._file(context)
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise VaultError(f"{file}: cannot be removed: {error.strerror}.") from None
        return True

    def stamp(self, *context: str) -> tuple[int, int] | None:
        """Returns a value that changes whenever this or another process changes the token, or None if there
        is no token.
        """
        try:
            status = self._file(context).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def master_key_ids(self) -> list[str]:
        """Returns the ids of the master keys with which the tokens are encrypted, without decrypting the
        tokens.
        """
        texts = [private_files.read(file) for file in sorted(self._folder.glob("*.sealed"))]
        return [crypto.key_id(text.decode("ascii", "replace")) for text in texts if text is not None]

    def _decrypt(self, text: str, context: tuple[str, ...]) -> bytes:
        try:
            return crypto.decrypt(self._keys, text, *context)
        except crypto.KeyMissing:
            # Load the master keys again, because another process may have added one and used it for this
            # token.
            del self._keys
            return crypto.decrypt(self._keys, text, *context)

    @cached_property
    def _keys(self) -> crypto.MasterKeys:
        return self._load()

    def _file(self, context: tuple[str, ...]) -> Path:
        digest = hashlib.sha256("\0".join(context).encode("utf-8", "surrogatepass")).hexdigest()[:24]
        label = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(context[:2]))[:40].strip("-")
        return self._folder / f"{label}-{digest}.sealed"

    def __repr__(self) -> str:
        return f"Tokens({str(self._folder)!r})"
