"""API keys. A key is shown once, and only its digest is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import InvalidInput, Unauthorized
from hutch.store import models
from hutch.store.models import ApiKey, User
from hutch.text import has_control_character

if TYPE_CHECKING:
    from hutch.store.store import Store

SECRET_PREFIX = "hk_"
SECRET_BYTES = 32
SCOPES = ("abilities", "execbox", "mcp", "rep", "toolscript", "tpmjs")
"""Protocols that a key can be used for."""
DEFAULT_SCOPES = ("abilities", "mcp")
MAX_NAME_CHARS = 100

# Prefix and 32 bytes in Base64url.
_SECRET_PATTERN = re.compile(r"hk_[A-Za-z0-9_-]{43}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """User and API key of an authenticated request."""

    user: User
    key: ApiKey

    def may(self, scope: str) -> bool:
        return scope in self.key.scopes


def create(
    user: User, name: str, scopes: Sequence[str] = (), expires_at: str | None = None
) -> tuple[ApiKey, str]:
    """Creates a key. Returns its record and the secret, which is not stored anywhere. Raises InvalidInput."""
    _check_name(name)
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown:
        raise InvalidInput("scope", f"there is no {unknown[0]!r}; expected some of {', '.join(SCOPES)}.")
    now = models.now()
    if expires_at is not None and not _TIME.fullmatch(expires_at):
        raise InvalidInput("expires", f"expected a time such as {now}, got {expires_at!r}.")
    if expires_at is not None and expires_at <= now:
        raise InvalidInput("expires", f"expected a time in the future, got {expires_at}.")
    secret = SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    key = ApiKey(
        id=f"key_{secrets.token_hex(6)}",
        user_id=user.id,
        name=name,
        digest=digest(secret),
        hint=secret[-4:],
        scopes=tuple(sorted(set(scopes or DEFAULT_SCOPES))),
        created_at=now,
        expires_at=expires_at,
    )
    return key, secret


def digest(secret: str) -> str:
    """Returns the digest under which the store keeps a key. Raises Unauthorized if `secret` cannot be a key.

    A fast hash is enough, because a key has 256 random bits.
    """
    if not secret:
        raise Unauthorized("missing", "An API key is needed.", remedy=_SEND_REMEDY)
    if not _SECRET_PATTERN.fullmatch(secret):
        raise Unauthorized("unknown", _UNKNOWN_KEY, remedy=_CREATE_REMEDY)
    return hashlib.sha256(secret.encode()).hexdigest()


def verify(secret: str, stored: tuple[ApiKey, User] | None) -> Identity:
    """Checks a secret against the row that the store found for its digest. Raises Unauthorized."""
    expected = digest(secret)
    # Looking the digest up by an index is safe, although its duration may reveal something about known
    # digests, because a digest does not reveal the key. The digests are compared in constant time anyway.
    if stored is None or not hmac.compare_digest(stored[0].digest, expected):
        raise Unauthorized("unknown", _UNKNOWN_KEY, remedy=_CREATE_REMEDY)
    key, user = stored
    if key.user_id != user.id:
        raise Unauthorized("unknown", _UNKNOWN_KEY, remedy=_CREATE_REMEDY)
    if key.revoked_at is not None:
        raise Unauthorized("revoked", f"This API key was revoked at {key.revoked_at}.", remedy=_RENEW_REMEDY)
    if key.expires_at is not None and key.expires_at <= models.now():
        raise Unauthorized("expired", f"This API key expired at {key.expires_at}.", remedy=_RENEW_REMEDY)
    return Identity(user=user, key=key)


async def authenticate(store: Store, secret: str) -> Identity:
    """Checks an API key and records the use of the key. Raises Unauthorized and StoreError."""
    identity = verify(secret, await store.api_keys.by_digest(digest(secret)))
    store.api_keys.record_use(identity.key.id, models.now())
    return identity


def state(key: ApiKey) -> str:
    """Returns the state of a key: `active`, `revoked` or `expired`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= models.now() else "active"


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARS or has_control_character(name):
        raise InvalidInput(
            "name", f"expected at most {MAX_NAME_CHARS} characters, none of them a control character."
        )


_UNKNOWN_KEY = "This API key is not known here."
_SEND_REMEDY = "Send it as `Authorization: Bearer hk_…`; `hutch key add USER` makes one."
_CREATE_REMEDY = "`hutch key add USER` makes one."
_RENEW_REMEDY = "`hutch key add USER` makes a new one."
