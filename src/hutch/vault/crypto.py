"""Encryption with AES-256-GCM, and the master keys.

An encrypted text has the format `hutch1.<key id>.<base64url of nonce and ciphertext>`. The format, the key id
and a context (for example the user and the domain) are authenticated too. So a text that was altered or
copied to another place cannot be decrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from hutch.errors import VaultError
from hutch.vault import private_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTER_KEY_VARIABLE = "HUTCH_MASTER_KEY"
MASTER_KEY_FILE = "master.key"
KEY_BYTES = 32

FORMAT = "hutch1"
NONCE_BYTES = 12

_GENERATE_REMEDY = "Make one with `head -c 32 /dev/urandom | base64`."


# --- keys ---


class EncryptionKey:
    """Key of 256 secret bits, with an id that reveals nothing about the bits."""

    noun: ClassVar[str] = "key"

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a {self.noun} has {KEY_BYTES} bytes")
        self.secret = secret
        self.id = hashlib.sha256(f"hutch {self.noun} id\0".encode() + secret).hexdigest()[:12]

    @cached_property
    def cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self.secret)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


K = TypeVar("K", bound=EncryptionKey, covariant=True)


class KeyRing(Generic[K]):
    """Keys that can decrypt. Only the first one, the current key, encrypts."""

    def __init__(self, keys: Sequence[K]) -> None:
        if not keys:
            raise ValueError("at least one key")
        self.current: K = keys[0]
        self._by_id = {key.id: key for key in reversed(keys)}

    @property
    def ids(self) -> list[str]:
        """Ids of the keys. The first one belongs to the current key."""
        return [self.current.id, *(key for key in reversed(self._by_id) if key != self.current.id)]

    def find(self, key_id: str) -> K | None:
        return self._by_id.get(key_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self._by_id))})"


# --- encryption ---


class KeyMissing(VaultError):
    """The key that a text is encrypted with is not available."""

    def __init__(self, noun: str, key_id: str, subject: str = "It") -> None:
        super().__init__(
            f"{subject} is encrypted with the {noun} {key_id}, which is not available.",
            remedy="Add that key to HUTCH_MASTER_KEY after the current one, separated by a comma."
            if noun == MasterKey.noun
            else None,
        )
        self.noun = noun
        self.key_id = key_id


def encrypt(keys: KeyRing[EncryptionKey], data: bytes, *context: str) -> str:
    """Encrypts data with the current key. `context` is not secret, but decryption needs the same context."""
    key = keys.current
    nonce = secrets.token_bytes(NONCE_BYTES)
    ciphertext = key.cipher.encrypt(nonce, data, _associated_data(key, context))
    return f"{FORMAT}.{key.id}.{base64.urlsafe_b64encode(nonce + ciphertext).decode().rstrip('=')}"


def decrypt(keys: KeyRing[EncryptionKey], text: str, *context: str) -> bytes:
    """Decrypts a text. Raises VaultError if the key is missing, the context differs or the text was
    altered.
    """
    from cryptography.exceptions import InvalidTag

    key_id, encrypted = _parse_encrypted(text)
    key = keys.find(key_id)
    if key is None:
        raise KeyMissing(keys.current.noun, key_id)
    try:
        return key.cipher.decrypt(
            encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], _associated_data(key, context)
        )
    except InvalidTag:
        raise VaultError("The encrypted text was altered, or belongs to another record.") from None


def is_current(keys: KeyRing[EncryptionKey], text: str) -> bool:
    """Returns True if the text was encrypted with the current key."""
    return key_id(text) == keys.current.id


def key_id(text: str) -> str:
    """Returns the id of the key that encrypted the text. Raises VaultError if the text has another format."""
    return _parse_encrypted(text)[0]


def _parse_encrypted(text: str) -> tuple[str, bytes]:
    format_name, _, rest = text.strip().partition(".")
    key_id, _, encoded = rest.partition(".")
    if format_name != FORMAT:
        raise VaultError("Expected an encrypted text, which starts with `hutch1.`.")
    try:
        padding = "=" * (-len(encoded) % 4)
        encrypted = base64.b64decode(encoded + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise VaultError("The encrypted text is corrupt.") from None
    if len(encrypted) < NONCE_BYTES + 16:
        raise VaultError("The encrypted text is truncated.")
    return key_id, encrypted


def _associated_data(key: EncryptionKey, context: tuple[str, ...]) -> bytes:
    # Encode the list as JSON, so that different contexts never give the same bytes.
    return msgspec.json.encode([FORMAT, key.id, *context])


# --- master keys ---


class MasterKey(EncryptionKey):
    """Key that encrypts data keys, and secrets that belong to no user."""

    noun = "master key"


class MasterKeys(KeyRing[MasterKey]):
    """Master keys of this installation."""


def load_master_keys(home: Path, environ: Mapping[str, str], *, create: bool = True) -> MasterKeys:
    """Loads the master keys from HUTCH_MASTER_KEY or, if that is not set, from HUTCH_HOME/master.key.

    A missing file is created. Without `create` it is an error, because a new key could not decrypt existing
    data. Raises VaultError that names the variable or the file, but never contains a key.
    """
    value = environ.get(MASTER_KEY_VARIABLE, "")
    if value.strip():
        return _parse_keys(value, MASTER_KEY_VARIABLE)
    file = home / MASTER_KEY_FILE
    text = private_files.read(file)
    if text is None and create:
        _create_key_file(home, file)
        text = private_files.read(file)
    if text is None:
        raise VaultError(
            f"There is no master key: {MASTER_KEY_VARIABLE} is not set, and there is no {file}.",
            remedy=f"Set {MASTER_KEY_VARIABLE}, or restore the file from a backup: encrypted data cannot be "
            "decrypted without it.",
        )
    return _decode_key_file(text, file)


def read_master_keys(home: Path, environ: Mapping[str, str]) -> bytes:
    """Returns the text of the master keys, in the format of the file master.key. Raises VaultError."""
    load_master_keys(home, environ, create=False)
    value = environ.get(MASTER_KEY_VARIABLE, "").strip()
    return f"{value}\n".encode() if value else private_files.read(home / MASTER_KEY_FILE) or b""


def check_master_keys(text: bytes, file: Path) -> None:
    """Raises VaultError if the text of a file is not a list of master keys."""
    _decode_key_file(text, file)


def master_key_source(home: Path, environ: Mapping[str, str]) -> str:
    """Returns the name of the variable or the path of the file that has the master keys."""
    if environ.get(MASTER_KEY_VARIABLE, "").strip():
        return MASTER_KEY_VARIABLE
    return str(home / MASTER_KEY_FILE)


def add_master_key(home: Path, environ: Mapping[str, str]) -> MasterKeys:
    """Adds a new key at the start of HUTCH_HOME/master.key, which makes it the current key.

    Raises VaultError if that fails or if the keys come from HUTCH_MASTER_KEY.
    """
    if environ.get(MASTER_KEY_VARIABLE, "").strip():
        raise VaultError(
            f"The master key is in {MASTER_KEY_VARIABLE}, which only you can change.",
            remedy=f"Put a new key after the current one in {MASTER_KEY_VARIABLE} of every server, separated "
            f"by a comma, restart the servers, then put the new key first. {_GENERATE_REMEDY}",
        )
    load_master_keys(home, environ)
    file = home / MASTER_KEY_FILE
    with private_files.locked(home):
        private_files.write(file, f"{generate_master_key()}\n".encode() + (private_files.read(file) or b""))
    return load_master_keys(home, environ)


def generate_master_key() -> str:
    """Returns a new random key as Base64, the format of HUTCH_MASTER_KEY and of the file master.key."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _create_key_file(home: Path, file: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise VaultError(f"{home}: cannot be created: {error.strerror}.") from None
    private_files.write_if_missing(file, f"{generate_master_key()}\n".encode())


def _decode_key_file(text: bytes, file: Path) -> MasterKeys:
    try:
        return _parse_keys(text.decode("ascii"), str(file))
    except UnicodeDecodeError:
        raise VaultError(f"{file}: expected base64 text.", remedy=_restore_remedy(file)) from None


def _parse_keys(text: str, where: str) -> MasterKeys:
    """Parses keys that are separated by commas or line breaks."""
    texts = [part.strip() for part in text.replace("\n", ",").split(",")]
    texts = [part for part in texts if part]
    if not texts:
        raise VaultError(f"{where}: contains no key.", remedy=_restore_remedy(where))
    return MasterKeys([_parse_key(part, f"{where}, key {number}") for number, part in enumerate(texts, 1)])


def _parse_key(text: str, where: str) -> MasterKey:
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise VaultError(f"{where}: expected base64 of {KEY_BYTES} bytes.", remedy=_GENERATE_REMEDY) from None
    if len(secret) != KEY_BYTES:
        raise VaultError(f"{where}: expected {KEY_BYTES} bytes, got {len(secret)}.", remedy=_GENERATE_REMEDY)
    return MasterKey(secret)


def _restore_remedy(where: str | Path) -> str:
    return f"Restore {where} from a backup; without its keys, the data encrypted with them is lost."
