"""Reads what the public client encrypted. What is kept is sealed in our own way.

Its form: AES-256-GCM, the key is the SHA-256 of a text, the value is JSON with `ciphertext`, the base64 of
ciphertext and tag, and `iv`, the base64 of 12 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from hutch.errors import InvalidInput

NONCE_BYTES = 12
TAG_BYTES = 16


class _Public(msgspec.Struct):
    ciphertext: str
    iv: str


def open_public(text: str, key: str) -> str:
    """The value. Raises InvalidInput, which has nothing of either."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not key:
        raise InvalidInput("key", "expected the text that the value was encrypted with, got an empty one.")
    try:
        public = msgspec.json.decode(text, type=_Public)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidInput("value", _EXPECTED) from None
    sealed, nonce = _decode("ciphertext", public.ciphertext), _decode("iv", public.iv)
    if len(nonce) != NONCE_BYTES:
        raise InvalidInput("value", f"iv: expected {NONCE_BYTES} bytes, got {len(nonce)}.")
    if len(sealed) < TAG_BYTES:
        raise InvalidInput("value", f"ciphertext: expected at least {TAG_BYTES} bytes, got {len(sealed)}.")
    try:
        secret = hashlib.sha256(key.encode()).digest()
        return AESGCM(secret).decrypt(nonce, sealed, None).decode()
    except UnicodeEncodeError:
        raise InvalidInput("key", "expected a text that UTF-8 can write.") from None
    except InvalidTag:
        raise InvalidInput("value", "it was encrypted with another key, or was altered.") from None
    except UnicodeDecodeError:
        raise InvalidInput("value", "expected a text in UTF-8 inside.") from None


def _decode(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("value", f"{field}: expected base64.") from None


_EXPECTED = 'expected {"ciphertext": "…", "iv": "…"}, both in base64, as the public client encrypts.'
