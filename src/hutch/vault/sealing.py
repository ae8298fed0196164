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
from hutch.vault.keys import Key, Keys, MasterKey

FORM = "hutch1"
NONCE_BYTES = 12


class KeyMissing(VaultError):
    """The key that something is sealed with is not there."""

    def __init__(self, noun: str, key_id: str, what: str = "It") -> None:
        super().__init__(
            f"{what} is sealed with the {noun} {key_id}, which is not there.",
            remedy="Add that key to HUTCH_MASTER_KEY after the current one, separated by a comma."
            if noun == MasterKey.noun
            else None,
        )
        self.noun = noun
        self.key_id = key_id


def seal(keys: Keys[Key], data: bytes, *about: str) -> str:
    """Seals with the current key. `about` is not secret: it has to be said again to open."""
    key = keys.current
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed = key.cipher.encrypt(nonce, data, _associated(key, about))
    return f"{FORM}.{key.id}.{base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')}"


def unseal(keys: Keys[Key], text: str, *about: str) -> bytes:
    """What was sealed. Raises VaultError: no such key, not about this, or not as it was sealed."""
    from cryptography.exceptions import InvalidTag

    wanted, sealed = _parse(text)
    key = keys.find(wanted)
    if key is None:
        raise KeyMissing(keys.current.noun, wanted)
    try:
        return key.cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated(key, about))
    except InvalidTag:
        raise VaultError("The sealed text was altered, or is about something else.") from None


def is_current(keys: Keys[Key], text: str) -> bool:
    """Whether the current key sealed it; what an older one sealed is to be sealed again."""
    return key_id(text) == keys.current.id


def key_id(text: str) -> str:
    """The id of the key that sealed it. Raises VaultError for what is no sealed text."""
    return _parse(text)[0]


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


def _associated(key: Key, about: tuple[str, ...]) -> bytes:
    # As JSON, so that no two lists of texts run together to the same bytes.
    return msgspec.json.encode([FORM, key.id, *about])
