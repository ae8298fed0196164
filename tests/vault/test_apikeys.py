from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

import msgspec
import pytest

from hutch.errors import InvalidInput, Unauthorized
from hutch.store import rows
from hutch.store.rows import ApiKey, User
from hutch.vault import apikeys

USER = User(id="user_a", name="a", data_key="", created_at=rows.now())


def made(**given: Any) -> tuple[ApiKey, str]:
    return apikeys.make(USER, given.pop("name", ""), **given)


def test_a_key_is_256_random_bits_and_only_its_digest_is_kept() -> None:
    key, secret = made(name="laptop")
    assert re.fullmatch(r"hk_[A-Za-z0-9_-]{43}", secret)
    assert key.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert key.hint == secret[-4:]
    assert secret not in msgspec.json.encode(key).decode()
    assert secret[3:20] not in repr(key)
    assert len({made()[1] for _ in range(50)}) == 50


def test_scopes_are_those_of_the_doors_and_few_by_default() -> None:
    assert made()[0].scopes == ("abilities", "mcp")
    assert made(scopes=["tpmjs", "execbox", "tpmjs"])[0].scopes == ("execbox", "tpmjs")
    with pytest.raises(InvalidInput, match=r"scope: there is no 'root'; expected some of abilities, execbox"):
        made(scopes=["abilities", "root"])
    key, secret = made(scopes=["tpmjs"])
    caller = apikeys.admit(secret, (key, USER))
    assert caller.may("tpmjs")
    assert not caller.may("abilities")


@pytest.mark.parametrize("expires", ["2001-01-01T00:00:00.000Z", "tomorrow", "2040-01-01", ""])
def test_expiry_is_a_time_to_come(expires: str) -> None:
    with pytest.raises(InvalidInput, match="expires: expected a time"):
        made(expires_at=expires)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x" * 101, "\u2028", "\ud800"])
def test_names_have_nothing_that_a_terminal_would_obey(name: str) -> None:
    with pytest.raises(InvalidInput, match="name: expected at most 100 characters"):
        made(name=name)


def test_who_has_the_key_comes_in() -> None:
    key, secret = made(expires_at=rows.now(plus_seconds=60))
    caller = apikeys.admit(secret, (key, USER))
    assert (caller.user, caller.key) == (USER, key)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revoked_at": rows.now()}, "revoked"),
        ({"expires_at": "2001-01-01T00:00:00.000Z"}, "expired"),
        ({"revoked_at": rows.now(), "expires_at": "2001-01-01T00:00:00.000Z"}, "revoked"),
        ({"digest": "0" * 64}, "unknown"),
        ({"user_id": "user_b"}, "unknown"),
    ],
)
def test_keys_that_do_not_count_are_refused_with_the_reason(change: dict[str, str], reason: str) -> None:
    key, secret = made()
    with pytest.raises(Unauthorized) as caught:
        apikeys.admit(secret, (msgspec.structs.replace(key, **change), USER))
    assert caught.value.reason == reason
    assert secret not in str(caught.value)
    assert "hutch key add" in str(caught.value)


def test_a_key_that_expires_this_moment_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = rows.now(plus_seconds=3600)
    key, secret = made(expires_at=moment)
    monkeypatch.setattr(rows, "now", lambda: moment)
    assert apikeys.state(key) == "expired"
    with pytest.raises(Unauthorized, match="expired at"):
        apikeys.admit(secret, (key, USER))


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
def test_what_is_no_key_is_refused_before_the_store_is_asked(secret: str, reason: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        apikeys.digest(secret)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 200


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = made()
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    apikeys.admit(secret, (key, USER))
    assert compared == [(key.digest, hashlib.sha256(secret.encode()).hexdigest())]
