"""Imports credentials that the public client has encrypted or exported.

A value is JSON with `ciphertext` (base64 of AES-256-GCM ciphertext and tag) and `iv` (base64 of 12 bytes).
The encryption key is the SHA-256 of a passphrase.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

import msgspec

from hutch.errors import InvalidInput
from hutch.vault import credentials
from hutch.vault.credentials import CredentialName, Secret

CLIENT_ENCRYPTED = "\0"
"""Prefix of a stored value that the client has encrypted with a key that is not stored. No header value
starts with it.
"""
NONCE_BYTES = 12
TAG_BYTES = 16

_EXPECTED_FORMAT = 'expected {"ciphertext": "…", "iv": "…"}, both in base64, as the public client encrypts.'


def decrypt_value(text: str, key: str) -> str:
    """Decrypts a value. Raises InvalidInput, whose message contains neither the value nor the key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not key:
        raise InvalidInput("key", "expected the text that the value was encrypted with, got an empty one.")
    nonce, ciphertext = _parse_value(text)
    try:
        secret = hashlib.sha256(key.encode()).digest()
        return AESGCM(secret).decrypt(nonce, ciphertext, None).decode()
    except UnicodeEncodeError:
        raise InvalidInput("key", "expected text that can be encoded as UTF-8.") from None
    except InvalidTag:
        raise InvalidInput("value", "it was encrypted with another key, or was altered.") from None
    except UnicodeDecodeError:
        raise InvalidInput("value", "expected UTF-8 text inside.") from None


def locked_value(text: str) -> str:
    """Returns the text to store for a value whose key is not known. Raises InvalidInput."""
    _parse_value(text)
    return CLIENT_ENCRYPTED + text


def unlock_secrets(secrets: Sequence[Secret], key: str) -> tuple[list[Secret], list[Secret]]:
    """Decrypts the values that the client has encrypted; others stay as they are. Returns the readable
    secrets, then the secrets that `key` cannot decrypt.
    """
    readable: list[Secret] = []
    locked: list[Secret] = []
    for secret in secrets:
        if not secret.value.startswith(CLIENT_ENCRYPTED):
            readable.append(secret)
            continue
        try:
            value = decrypt_value(secret.value.removeprefix(CLIENT_ENCRYPTED), key)
            credentials.check_value(secret.credential.kind, value)
        except InvalidInput:
            locked.append(secret)
        else:
            readable.append(Secret(secret.credential, value))
    return readable, locked


def _parse_value(text: str) -> tuple[bytes, bytes]:
    """Returns the nonce, and the ciphertext with its tag."""
    try:
        encrypted = msgspec.json.decode(text, type=_EncryptedValue)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidInput("value", _EXPECTED_FORMAT) from None
    ciphertext = _decode_base64("ciphertext", encrypted.ciphertext)
    nonce = _decode_base64("iv", encrypted.iv)
    if len(nonce) != NONCE_BYTES:
        raise InvalidInput("value", f"iv: expected {NONCE_BYTES} bytes, got {len(nonce)}.")
    if len(ciphertext) < TAG_BYTES:
        raise InvalidInput(
            "value", f"ciphertext: expected at least {TAG_BYTES} bytes, got {len(ciphertext)}."
        )
    return nonce, ciphertext


class _EncryptedValue(msgspec.Struct):
    ciphertext: str
    iv: str


def _decode_base64(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("value", f"{field}: expected base64.") from None


# --- exports ---


class ExportedCredential(msgspec.Struct, frozen=True, rename="camel"):
    """One exported credential, with the client's field names."""

    domain: str
    credential_key: str
    encrypted_value: str
    credential_type: str = "header"

    def __repr__(self) -> str:
        return f"ExportedCredential({self.domain!r})"


class _ExportFile(msgspec.Struct):
    credentials: list[ExportedCredential]


def parse_export(text: str) -> list[ExportedCredential]:
    """Parses an export: a list, or an object with the list in `credentials`. Raises InvalidInput."""
    try:
        if text.lstrip().startswith("["):
            return msgspec.json.decode(text, type=list[ExportedCredential])
        return msgspec.json.decode(text, type=_ExportFile).credentials
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        reason = error if isinstance(error, msgspec.ValidationError) else "it is not JSON"
        raise InvalidInput(
            "credentials",
            "expected a list of objects with domain, credentialType, credentialKey and encryptedValue: "
            f"{reason}.",
        ) from None


def decrypt_export(entries: Sequence[ExportedCredential], key: str) -> list[tuple[CredentialName, str]]:
    """Decrypts all entries of an export. Raises InvalidInput with the index of the first invalid entry."""
    decrypted = []
    for index, entry in enumerate(entries):
        try:
            name = credentials.make_name(entry.domain, entry.credential_type, entry.credential_key)
            value = decrypt_value(entry.encrypted_value, key)
            credentials.check_value(name.kind, value)
        except InvalidInput as error:
            raise InvalidInput(f"credentials[{index}]", str(error)) from None
        decrypted.append((name, value))
    return decrypted
