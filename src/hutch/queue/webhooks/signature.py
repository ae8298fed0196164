"""Signatures of the Standard Webhooks specification, version 1.0.0: HMAC-SHA256 of id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from hutch.errors import InvalidInput

PREFIX = "whsec_"
SECRET_BYTES = 32
MIN_SECRET_BYTES = 24
MAX_SECRET_BYTES = 64


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Returns the key of a secret. Raises InvalidInput."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidInput(
            "secret", f"expected {PREFIX} and Base64 of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes."
        )
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of the header `webhook-signature`."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
