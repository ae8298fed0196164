from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

import msgspec
import pytest

from hutch.errors import InvalidInput, Unauthorized
from hutch.store import models
from hutch.store.models import ApiKey, User
from hutch.vault import api_keys

USER = User(id="user_a", name="a", data_key="", created_at=models.now())


def create(**fields: Any) -> tuple[ApiKey, str]:
    return api_keys.create(USER, fields.pop("name", ""), **fields)


def test_key_is_256_random_bits_and_only_its_digest_is_stored() -> None:
    key, secret = create(name="laptop")
    assert re.fullmatch(r"hk_[A-Za-z0-9_-]{43}", secret)
    assert key.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert key.hint == secret[-4:]
    assert secret not in msgspec.json.encode(key).decode()
    assert secret[3:20] not in repr(key)
    assert len({create()[1] for _ in range(50)}) == 50


def test_scopes_are_protocols_with_few_by_default() -> None:
    assert create()[0].scopes == ("abilities", "mcp")
    assert create(scopes=["tpmjs", "execbox", "tpmjs"])[0].scopes == ("execbox", "tpmjs")
    with pytest.raises(InvalidInput, match=r"scope: there is no 'root'; expected some of abilities, execbox"):
        create(scopes=["abilities", "root"])
    key, secret = create(scopes=["tpmjs"])
    identity = api_keys.verify(secret, (key, USER))
    assert identity.may("tpmjs")
    assert not identity.may("abilities")


@pytest.mark.parametrize("expires", ["2001-01-01T00:00:00.000Z", "tomorrow", "2040-01-01", ""])
def test_expiry_must_be_in_the_future(expires: str) -> None:
    with pytest.raises(InvalidInput, match="expires: expected a time"):
        create(expires_at=expires)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x" * 101, "\u2028", "\ud800"])
def test_control_characters_in_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidInput, match="name: expected at most 100 characters"):
        create(name=name)


def test_valid_key_is_accepted() -> None:
    key, secret = create(expires_at=models.now(plus_seconds=60))
    identity = api_keys.verify(secret, (key, USER))
    assert (identity.user, identity.key) == (USER, key)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revoked_at": models.now()}, "revoked"),
        ({"expires_at": "2001-01-01T00:00:00.000Z"}, "expired"),
        ({"revoked_at": models.now(), "expires_at": "2001-01-01T00:00:00.000Z"}, "revoked"),
        ({"digest": "0" * 64}, "unknown"),
        ({"user_id": "user_b"}, "unknown"),
    ],
)
def test_invalid_keys_are_rejected_with_the_reason(change: dict[str, str], reason: str) -> None:
    key, secret = create()
    with pytest.raises(Unauthorized) as caught:
        api_keys.verify(secret, (msgspec.structs.replace(key, **change), USER))
    assert caught.value.reason == reason
    assert secret not in str(caught.value)
    assert "hutch key add" in str(caught.value)


def test_key_is_expired_at_its_expiry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = models.now(plus_seconds=3600)
    key, secret = create(expires_at=moment)
    monkeypatch.setattr(models, "now", lambda: moment)
    assert api_keys.state(key) == "expired"
    with pytest.raises(Unauthorized, match="expired at"):
        api_keys.verify(secret, (key, USER))


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        ("", "missing"),
        ("hk_", "unknown"),
        ("hk_" + "a" * 42, "unknown"),
        ("hk_" + "a" * 44, "unknown"),
        ("hk_" + "a" * 43 + "\n", "unknown"),
        ("HK_" + "a" * 43, "unknown"),
        ("hk_" + "ä" * 43, "unknown"),
        ("x" * 1_000_000, "unknown"),
    ],
)
def test_malformed_key_is_rejected_before_the_store_is_queried(secret: str, reason: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        api_keys.digest(secret)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 200


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = create()
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    api_keys.verify(secret, (key, USER))
    assert compared == [(key.digest, hashlib.sha256(secret.encode()).hexdigest())]
