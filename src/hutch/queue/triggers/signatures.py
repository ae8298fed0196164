"""Checks the signatures of requests that start triggers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from hutch.errors import Unauthorized
from hutch.queue.webhooks.signature import decode_secret, sign
from hutch.store.tables.queue.schedules import SignatureScheme

TOLERANCE_SECONDS = 300
"""Maximum difference between the time of a signature and the server's clock, in both directions."""
MAX_ID_CHARS = 200


def check_signature(
    scheme: SignatureScheme, secret: str, headers: Mapping[str, str], body: bytes, now: float
) -> None:
    """Raises Unauthorized if the signature is missing, wrong or too old. `now` is the Unix time."""
    match scheme:
        case "none":
            return
        case "github":
            expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            _compare(expected, [headers.get("x-hub-signature-256", "")])
        case "stripe":
            _check_stripe(secret, headers.get("stripe-signature", ""), body, now)
        case "standard":
            _check_standard(secret, headers, body, now)


def delivery_id(scheme: SignatureScheme, headers: Mapping[str, str], body: object) -> str | None:
    """Returns the id of a delivery, which stays the same when the service repeats the delivery; None if it
    has no id.
    """
    found: object = headers.get("webhook-id") or headers.get("x-github-delivery")
    if scheme == "stripe" and isinstance(body, dict):
        found = body.get("id")
    found = found or headers.get("idempotency-key")
    return found[:MAX_ID_CHARS] if isinstance(found, str) and found else None


def _check_stripe(secret: str, header: str, body: bytes, now: float) -> None:
    pairs = [part.partition("=")[::2] for part in header.split(",")]
    timestamp = next((value for name, value in pairs if name.strip() == "t"), "")
    _check_time(timestamp, now)
    expected = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    sent = [value for name, value in pairs if name.strip() == "v1"]
    _compare(expected, sent)


def _check_standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    timestamp = headers.get("webhook-timestamp", "")
    _check_time(timestamp, now)
    expected = sign(decode_secret(secret), headers.get("webhook-id", ""), int(timestamp), body)
    _compare(expected, headers.get("webhook-signature", "").split())


def _check_time(timestamp: str, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 15):
        raise _refused("the time of the signature is missing")
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise _refused(f"the signature is older than {TOLERANCE_SECONDS} s")


def _compare(expected: str, sent: list[str]) -> None:
    # Compare all signatures, so that the duration does not reveal which one matched.
    matches = [hmac.compare_digest(expected.encode(), each.encode("utf-8", "replace")) for each in sent]
    if not any(matches):
        raise _refused("the signature is missing or wrong")


def _refused(reason: str) -> Unauthorized:
    return Unauthorized("unknown", f"The request was refused: {reason}.")


def check_secret(scheme: SignatureScheme, secret: str | None) -> None:
    """Raises InvalidInput or Unauthorized if a trigger with this scheme cannot use the secret."""
    if scheme == "standard" and secret is not None:
        decode_secret(secret)


def new_token() -> str:
    """Returns the secret part of a trigger's URL."""
    return secrets.token_urlsafe(24)


def token_digest(token: str) -> str:
    return base64.b16encode(hashlib.sha256(token.encode("utf-8", "replace")).digest()).decode().lower()
