"""Sealing: AES-256-GCM, bound to what the secret is about.

A sealed text is `hutch1.<key id>.<base64url of nonce and ciphertext>`. The form, the key's id and what
the secret is about are authenticated with it: a text that was moved elsewhere, or altered, does not open.
"""

from __future__ import annotations

import base64
import binascii
import secrets

import msgspec

from hutch.errors import VaultError
from hutch.vault.keys import MasterKey, MasterKeys

FORM = "hutch1"
NONCE_BYTES = 12


def seal(keys: MasterKeys, data: bytes, *about: str) -> str:
    """Seals with the current key. `about` is not secret: it has to be said again to open."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = keys.current
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed = AESGCM(key.secret).encrypt(nonce, data, _associated(key, about))
    return f"{FORM}.{key.id}.{base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')}"


def unseal(keys: MasterKeys, text: str, *about: str) -> bytes:
    """What was sealed. Raises VaultError: no such key, not about this, or not as it was sealed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key_id, sealed = _parse(text)
    key = keys.find(key_id)
    if key is None:
        raise VaultError(
            f"It is sealed with the master key {key_id}, which is not there.",
            remedy="Add that key to HUTCH_MASTER_KEY after the current one, separated by a comma.",
        )
    try:
        return AESGCM(key.secret).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated(key, about))
    except InvalidTag:
        raise VaultError("The sealed text was altered, or is about something else.") from None


def is_current(keys: MasterKeys, text: str) -> bool:
    """Whether the current key sealed it; what an older one sealed is to be sealed again."""
    return _parse(text)[0] == keys.current.id


def _parse(text: str) -> tuple[str, bytes]:
    form, _, rest = text.strip().partition(".")
    key_id, _, coded = rest.partition(".")
    if form != FORM:
        raise VaultError("Expected a sealed text, which begins with `hutch1.`.")
    try:
        padding = "=" * (-len(coded) % 4)
        sealed = base64.b64decode(coded + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise VaultError("The sealed text is not as it was written.") from None
    if len(sealed) < NONCE_BYTES + 16:
        raise VaultError("The sealed text is cut off.")
    return key_id, sealed


def _associated(key: MasterKey, about: tuple[str, ...]) -> bytes:
    # As JSON, so that no two lists of texts run together to the same bytes.
    return msgspec.json.encode([FORM, key.id, *about])
