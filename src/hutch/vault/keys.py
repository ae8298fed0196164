"""Master keys: what everything secret is sealed with. The first is current; the others only open."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from hutch.errors import VaultError
from hutch.vault import files

VARIABLE = "HUTCH_MASTER_KEY"
FILE = "master.key"
BYTES = 32


class MasterKey:
    """256 secret bits, and an id that tells nothing of them."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != BYTES:
            raise ValueError(f"a master key has {BYTES} bytes")
        self.secret = secret
        self.id = hashlib.sha256(b"hutch master key id\0" + secret).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"MasterKey({self.id})"


class MasterKeys:
    """The key that seals, and all that open."""

    def __init__(self, keys: Sequence[MasterKey]) -> None:
        if not keys:
            raise ValueError("at least one key")
        self.current = keys[0]
        self._by_id = {key.id: key for key in reversed(keys)}

    def find(self, key_id: str) -> MasterKey | None:
        return self._by_id.get(key_id)

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(sorted(self._by_id))})"


def load(home: Path, environ: Mapping[str, str]) -> MasterKeys:
    """Keys from HUTCH_MASTER_KEY, or from HUTCH_HOME/master.key, which is made if there is none.

    Raises VaultError that names the variable or the file, and never what is in it.
    """
    given = environ.get(VARIABLE, "")
    if given.strip():
        return _parse(given, VARIABLE)
    file = home / FILE
    found = files.read(file)
    if found is None:
        _make(home, file)
        found = files.read(file)
    if found is None:
        raise VaultError(f"{file}: has gone while it was to be read.")
    try:
        return _parse(found.decode("ascii"), str(file))
    except UnicodeDecodeError:
        raise VaultError(f"{file}: expected base64 text.", remedy=_restore(file)) from None


def generate() -> str:
    """A new key as it is written in the variable and the file."""
    return base64.b64encode(secrets.token_bytes(BYTES)).decode()


def _make(home: Path, file: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise VaultError(f"{home}: cannot be made: {error.strerror}.") from None
    files.write_first(file, f"{generate()}\n".encode())


def _parse(text: str, where: str) -> MasterKeys:
    """Keys are separated by commas; in a file also by lines."""
    texts = [part.strip() for part in text.replace("\n", ",").split(",")]
    texts = [part for part in texts if part]
    if not texts:
        raise VaultError(f"{where}: there is no key in it.", remedy=_restore(where))
    return MasterKeys([_key(part, f"{where}, key {number}") for number, part in enumerate(texts, 1)])


def _key(text: str, where: str) -> MasterKey:
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise VaultError(f"{where}: expected base64 of {BYTES} bytes.", remedy=_MAKE) from None
    if len(secret) != BYTES:
        raise VaultError(f"{where}: expected {BYTES} bytes, got {len(secret)}.", remedy=_MAKE)
    return MasterKey(secret)


_MAKE = "Make one with `head -c 32 /dev/urandom | base64`."


def _restore(where: str | Path) -> str:
    return f"Restore {where} from a backup; without it, what was sealed with it is lost."
