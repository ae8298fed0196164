"""Keys. The master keys are what everything secret is sealed with: the first is current, the others open."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from hutch.errors import VaultError
from hutch.vault import files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "HUTCH_MASTER_KEY"
FILE = "master.key"
BYTES = 32


class Key:
    """256 secret bits, and an id that tells nothing of them."""

    noun: ClassVar[str] = "key"

    def __init__(self, secret: bytes) -> None:
        if len(secret) != BYTES:
            raise ValueError(f"a {self.noun} has {BYTES} bytes")
        self.secret = secret
        self.id = hashlib.sha256(f"hutch {self.noun} id\0".encode() + secret).hexdigest()[:12]

    @cached_property
    def cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self.secret)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


class MasterKey(Key):
    """Seals data keys, and what belongs to no user."""

    noun = "master key"


K = TypeVar("K", bound=Key, covariant=True)


class Keys(Generic[K]):
    """The key that seals, and all that open."""

    def __init__(self, keys: Sequence[K]) -> None:
        if not keys:
            raise ValueError("at least one key")
        self.current: K = keys[0]
        self._by_id = {key.id: key for key in reversed(keys)}

    @property
    def ids(self) -> list[str]:
        """The current one's first."""
        return [self.current.id, *(key for key in reversed(self._by_id) if key != self.current.id)]

    def find(self, key_id: str) -> K | None:
        return self._by_id.get(key_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self._by_id))})"


class MasterKeys(Keys[MasterKey]):
    """Those of this Hutch."""


def load(home: Path, environ: Mapping[str, str], *, make: bool = True) -> MasterKeys:
    """Keys from HUTCH_MASTER_KEY, or from HUTCH_HOME/master.key, which is made if there is none.

    Without `make` that is an error: a new key opens nothing that is there already. Raises VaultError that
    names the variable or the file, and never what is in it.
    """
    given = environ.get(VARIABLE, "")
    if given.strip():
        return _parse(given, VARIABLE)
    file = home / FILE
    found = files.read(file)
    if found is None and make:
        _make(home, file)
        found = files.read(file)
    if found is None:
        raise VaultError(
            f"There is no master key: {VARIABLE} is not set, and there is no {file}.",
            remedy=f"Set {VARIABLE}, or restore the file from a backup: what is sealed cannot be opened "
            "without it.",
        )
    return _decode(found, file)


def add(home: Path, environ: Mapping[str, str]) -> MasterKeys:
    """Puts a new key in front of those in HUTCH_HOME/master.key. Raises VaultError, also if the keys are not
    from that file but from HUTCH_MASTER_KEY."""
    if environ.get(VARIABLE, "").strip():
        raise VaultError(
            f"The master key is in {VARIABLE}, which only you can change.",
            remedy=f"Put a new key after the current one in every server's {VARIABLE}, separated by a comma, "
            f"restart these, then put it first. {_MAKE}",
        )
    load(home, environ)
    file = home / FILE
    with files.alone(home):
        files.write(file, f"{generate()}\n".encode() + (files.read(file) or b""))
    return load(home, environ)


def generate() -> str:
    """A new key as it is written in the variable and the file."""
    return base64.b64encode(secrets.token_bytes(BYTES)).decode()


def _make(home: Path, file: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise VaultError(f"{home}: cannot be made: {error.strerror}.") from None
    files.write_first(file, f"{generate()}\n".encode())


def _decode(found: bytes, file: Path) -> MasterKeys:
    try:
        return _parse(found.decode("ascii"), str(file))
    except UnicodeDecodeError:
        raise VaultError(f"{file}: expected base64 text.", remedy=_restore(file)) from None


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
