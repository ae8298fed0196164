"""API keys: made once, shown once, kept as digests."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import InvalidInput, Unauthorized
from hutch.store import rows
from hutch.store.rows import ApiKey, User

if TYPE_CHECKING:
    from hutch.store.store import Store

PREFIX = "hk_"
BYTES = 32
SCOPES = ("abilities", "execbox", "mcp", "rep", "toolscript", "tpmjs")
"""The doors, by which a key says where it counts."""
DEFAULT_SCOPES = ("abilities", "mcp")
MOST_NAME_CHARS = 100

# What 32 bytes are in base64url.
_SECRET = re.compile(r"hk_[A-Za-z0-9_-]{43}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who comes with a key that counts."""

    user: User
    key: ApiKey

    def may(self, scope: str) -> bool:
        return scope in self.key.scopes


def make(
    user: User, name: str, scopes: Sequence[str] = (), expires_at: str | None = None
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is nowhere else. Raises InvalidInput."""
    _check_name(name)
    unknown = [each for each in scopes if each not in SCOPES]
    if unknown:
        raise InvalidInput("scope", f"there is no {unknown[0]!r}; expected some of {', '.join(SCOPES)}.")
    now = rows.now()
    if expires_at is not None and not _TIME.fullmatch(expires_at):
        raise InvalidInput("expires", f"expected a time such as {now}, got {expires_at!r}.")
    if expires_at is not None and expires_at <= now:
        raise InvalidInput("expires", f"expected a time to come, got {expires_at}.")
    secret = PREFIX + secrets.token_urlsafe(BYTES)
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
    """By which the store knows a key. Raises Unauthorized for what is no key at all.

    No slow hash: nobody guesses 256 random bits.
    """
    if not secret:
        raise Unauthorized("missing", "An API key is needed.", remedy=_SEND)
    if not _SECRET.fullmatch(secret):
        raise Unauthorized("unknown", _UNKNOWN, remedy=_SEND)
    return hashlib.sha256(secret.encode()).hexdigest()


def admit(secret: str, found: tuple[ApiKey, User] | None) -> Caller:
    """Who comes with the key, from what the store has for its digest. Raises Unauthorized."""
    wanted = digest(secret)
    # A store finds by an index, which tells nothing that helps: who knows a digest knows no key. What it
    # found is compared all the same, in constant time.
    if found is None or not hmac.compare_digest(found[0].digest, wanted):
        raise Unauthorized("unknown", _UNKNOWN, remedy=_SEND)
    key, user = found
    if key.user_id != user.id:
        raise Unauthorized("unknown", _UNKNOWN, remedy=_SEND)
    if key.revoked_at is not None:
        raise Unauthorized("revoked", f"This API key was revoked at {key.revoked_at}.", remedy=_NEW)
    if key.expires_at is not None and key.expires_at <= rows.now():
        raise Unauthorized("expired", f"This API key expired at {key.expires_at}.", remedy=_NEW)
    return Caller(user=user, key=key)


async def authenticate(store: Store, secret: str) -> Caller:
    """Who comes with the key, which counts as a use of it. Raises Unauthorized and StoreError."""
    caller = admit(secret, await store.keys.by_digest(digest(secret)))
    store.keys.used(caller.key.id, rows.now())
    return caller


def state(key: ApiKey) -> str:
    """`active`, `revoked` or `expired`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= rows.now() else "active"


def _check_name(name: str) -> None:
    if len(name) > MOST_NAME_CHARS or _CONTROL.search(name):
        raise InvalidInput(
            "name", f"expected at most {MOST_NAME_CHARS} characters, none of them a control character."
        )


_UNKNOWN = "This API key is not known."
_SEND = "Send it as `Authorization: Bearer hk_…`; `hutch key add USER` makes one."
_NEW = "`hutch key add USER` makes a new one."
