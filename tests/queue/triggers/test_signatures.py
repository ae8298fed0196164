"""Signatures of GitHub, Stripe and Standard Webhooks, and the mapping of requests to inputs."""

from __future__ import annotations

import hashlib
import hmac
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook as Signer

from hutch.errors import InvalidInput, Unauthorized
from hutch.queue.triggers.mapping import check_mapping, map_inputs
from hutch.queue.triggers.signatures import check_signature, delivery_id
from hutch.queue.webhooks.signature import new_secret
from hutch.store.tables.queue.schedules import SignatureScheme

BODY = b'{"id": "evt_1", "n": 1}'
NOW = int(time.time())
STANDARD_SECRET = new_secret()


def digest(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def signed(scheme: SignatureScheme, at: int = NOW) -> tuple[str, dict[str, str]]:
    if scheme == "github":
        return "s3cret", {"x-hub-signature-256": f"sha256={digest('s3cret', BODY)}"}
    if scheme == "stripe":
        sent = digest("s3cret", f"{at}.".encode() + BODY)
        return "s3cret", {"stripe-signature": f"t={at},v1=old,v1={sent}"}
    signature = Signer(STANDARD_SECRET).sign("msg_1", datetime.fromtimestamp(at, UTC), BODY.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at)}
    return STANDARD_SECRET, {**headers, "webhook-signature": f"v1,b2xk {signature}"}


@pytest.mark.parametrize("scheme", ["github", "stripe", "standard"])
def test_signature_is_checked(scheme: SignatureScheme) -> None:
    secret, headers = signed(scheme)
    check_signature(scheme, secret, headers, BODY, NOW)
    for changed in (BODY + b" ", b""):
        with pytest.raises(Unauthorized):
            check_signature(scheme, secret, headers, changed, NOW)
    with pytest.raises(Unauthorized):
        check_signature(scheme, secret, {}, BODY, NOW)
    other = new_secret() if scheme == "standard" else "another"
    with pytest.raises(Unauthorized):
        check_signature(scheme, other, headers, BODY, NOW)


@pytest.mark.parametrize("scheme", ["stripe", "standard"])
@pytest.mark.parametrize("at", [NOW - 301, NOW + 301])
def test_old_signature_is_refused(scheme: SignatureScheme, at: int) -> None:
    secret, headers = signed(scheme, at)
    with pytest.raises(Unauthorized, match="older than 300 s"):
        check_signature(scheme, secret, headers, BODY, NOW)


@pytest.mark.parametrize(
    ("scheme", "headers", "expected"),
    [
        ("github", {"x-github-delivery": "d1"}, "d1"),
        ("standard", {"webhook-id": "m1"}, "m1"),
        ("stripe", {}, "evt_1"),
        ("none", {"idempotency-key": "k"}, "k"),
        ("none", {}, None),
    ],
)
def test_repeated_delivery_has_the_same_id(
    scheme: SignatureScheme, headers: dict[str, str], expected: str | None
) -> None:
    assert delivery_id(scheme, headers, {"id": "evt_1"}) == expected


def test_request_is_mapped_to_inputs() -> None:
    body: Any = {"repository": {"name": "hutch"}, "commits": [{"id": "a"}, {"id": "b"}]}
    mapping = {
        "repo": "body.repository.name",
        "second": "body.commits[1].id",
        "none": "body.commits[7].id.x",
        "event": "headers.X-GitHub-Event",
        "page": "query.page",
        "all": "body",
    }
    check_mapping(mapping)
    assert map_inputs(mapping, body, {"x-github-event": "push"}, {"page": "2"}) == {
        "repo": "hutch",
        "second": "b",
        "none": None,
        "event": "push",
        "page": "2",
        "all": body,
    }
    assert map_inputs({}, body, {}, {}) == body
    assert map_inputs({}, [1], {}, {}) == {"body": [1]}


@pytest.mark.parametrize("path", ["", "env.HOME", "body..x", "body[x]", "body.", "x" * 600, "bodyguard"])
def test_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"map\.n"):
        check_mapping({"n": path})
