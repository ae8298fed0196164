from __future__ import annotations

import pprint
import traceback

import msgspec
import pytest

from hutch.errors import InvalidInput, VaultError
from hutch.store import models
from hutch.store.models import Credential
from hutch.vault import credentials, crypto
from hutch.vault.credentials import CredentialName, Secret
from hutch.vault.data_keys import DataKey, DataKeys

KEYS = DataKeys([DataKey(b"d" * 32)])
VALUE = "Bearer sk-0123456789abcdefghijWXYZ"


def credential(value: str = VALUE) -> Credential:
    now = models.now()
    name = CredentialName("api.example.com", "header", "Authorization")
    return Credential(
        id="cred_1",
        user_id="user_a",
        domain=name.domain,
        kind=name.kind,
        key=name.key,
        sealed=credentials.encrypt(KEYS, "user_a", name, value),
        hint=credentials.hint(value),
        created_at=now,
        updated_at=now,
    )


# --- names ---


@pytest.mark.parametrize(
    ("domain", "key", "expected"),
    [
        ("api.example.com", "Authorization", "api.example.com::Authorization"),
        ("API.Example.COM.", "apikey", "api.example.com::apikey"),
        ("api.example.com", "API.example.com::X-Key", "api.example.com::X-Key"),
        ("bücher.example", "x", "xn--bcher-kva.example::x"),
        ("127.0.0.1", "x", "127.0.0.1::x"),
        ("0x7f000001", "x", "127.0.0.1::x"),
        ("[::1]", "x", "::1::x"),
        ("0:0:0:0:0:0:0:1", "x", "::1::x"),
        (" localhost ", "x", "localhost::x"),
    ],
)
def test_domains_are_normalised(domain: str, key: str, expected: str) -> None:
    assert str(credentials.make_name(domain, "header", key)) == expected


@pytest.mark.parametrize(
    "domain",
    [
        "",
        "https://api.example.com",
        "api.example.com:443",
        "api.example.com/v1",
        "user@api.example.com",
        "*.example.com",
        "a b",
        "a..b",
        "a\nb",
        "example.com\x00",
        "x" * 300,
        "\ud800.example",
        "☃\u200d.example",
    ],
)
def test_invalid_domain_is_rejected(domain: str) -> None:
    with pytest.raises(InvalidInput, match=r"^domain: expected the name of a host"):
        credentials.make_name(domain, "header", "x")


@pytest.mark.parametrize(
    "key", ["", "a b", "a:b", "a\r\nb", "ä", "X-Key: sk-secret", "Authorization=sk-secret"]
)
@pytest.mark.parametrize("kind", ["header", "cookie", "auth_token"])
def test_invalid_header_name_is_rejected_and_not_quoted(kind: str, key: str) -> None:
    with pytest.raises(InvalidInput, match=r"^key: ") as caught:
        credentials.make_name("example.com", kind, key)
    assert "secret" not in str(caught.value)


def test_query_and_body_keys_may_be_any_printable_text() -> None:
    assert credentials.make_name("example.com", "query", "filter[id]").key == "filter[id]"
    assert credentials.make_name("example.com", "body", "schlüssel").key == "schlüssel"
    with pytest.raises(InvalidInput, match="control characters"):
        credentials.make_name("example.com", "query", "a\nb")


def test_key_for_another_domain_is_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"key: it is for another domain than example\.com"):
        credentials.make_name("example.com", "header", "other.example::X-Key")
    assert credentials.parse_name("[::1]::X-Key", "header") == CredentialName("::1", "header", "X-Key")
    with pytest.raises(InvalidInput, match=r"expected both, such as"):
        credentials.parse_name("sk-secret", "header")


def test_unknown_kind_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="kind: expected one of header, cookie, auth_token, query, body"):
        credentials.make_name("example.com", "oauth", "x")


# --- values ---


@pytest.mark.parametrize("bad", ["\r", "\n", "\r\nHost: evil", "\0", "\x1b", "\x7f", "\x0b"])
@pytest.mark.parametrize("kind", ["header", "cookie", "auth_token"])
def test_header_values_with_control_characters_are_rejected(kind: str, bad: str) -> None:
    with pytest.raises(InvalidInput, match="control character") as caught:
        credentials.check_value(kind, f"{VALUE}{bad}x")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("value", ["", " a", "a ", "\ta", "☃", "\ud800", "x" * 65_537, "ä" * 40_000])
def test_other_invalid_header_values_are_rejected_and_not_quoted(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"^value: ") as caught:
        credentials.check_value("header", value)
    assert len(str(caught.value)) < 120


def test_valid_values_are_accepted() -> None:
    for value in ("a", "a\tb", "ü", "session=1; theme=dark", "x" * 16_384):
        credentials.check_value("header", value)
    for value in ("☃", "a\nb", " a "):
        credentials.check_value("body", value)
    with pytest.raises(InvalidInput, match="NUL"):
        credentials.check_value("query", "a\0")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (VALUE, "WXYZ"),
        ("0123456789abcdef", "cdef"),
        ("0123456789abcde", ""),
        ("Bearer sk-abc123", ""),
        ("session=0123456789abcdef0123; pin=1234", ""),
        ("pin=1234; session=0123456789abcdef0123", "0123"),
        ("Basic dXNlcjpodW50ZXIyaHVudGVyMg==", ""),
        ("basic dXNlcjpodW50ZXIyaHVudGVyMmFh", ""),
        ("correct horse battery staple", ""),
        ('{"token": "0123456789abcdef0123"}', ""),
        ("", ""),
    ],
)
def test_hint_is_shown_for_long_secrets_only(value: str, hint: str) -> None:
    assert credentials.hint(value) == hint


# --- encryption ---


def test_value_is_decrypted_with_its_own_name() -> None:
    assert credentials.decrypt(KEYS, credential()).value == VALUE


@pytest.mark.parametrize(
    "change",
    [
        {"user_id": "user_b"},
        {"domain": "evil.example"},
        {"domain": "example.com"},
        {"kind": "cookie"},
        {"key": "X-Other"},
        {"domain": "api.example.co", "kind": "mheader"},
    ],
)
def test_moved_row_cannot_be_decrypted(change: dict[str, str]) -> None:
    moved = msgspec.structs.replace(credential(), **change)
    with pytest.raises(VaultError, match="altered, or belongs to another record") as caught:
        credentials.decrypt(KEYS, moved)
    assert f"{moved.domain}::{moved.key}" in str(caught.value)


def test_case_of_a_name_does_not_matter() -> None:
    assert (
        credentials.decrypt(KEYS, msgspec.structs.replace(credential(), key="AUTHORIZATION")).value == VALUE
    )


def test_missing_data_key_is_named() -> None:
    with pytest.raises(
        crypto.KeyMissing, match=r"api\.example\.com::Authorization .* the data key [0-9a-f]{12}"
    ):
        credentials.decrypt(DataKeys([DataKey(b"e" * 32)]), credential())


def test_value_never_appears_in_printed_output() -> None:
    secret = credentials.decrypt(KEYS, credential())
    shown = [repr(secret), str(secret), f"{secret}", pprint.pformat([secret])]
    shown += [repr(secret.credential), repr({"a": secret})]
    # The library rich uses this method, if it exists, to print all fields.
    assert not hasattr(secret, "__rich_repr__")

    def fail(secret: Secret) -> None:
        raise VaultError("no")

    try:
        fail(secret)
    except VaultError:
        shown.append(traceback.format_exc())
    assert [text for text in shown if "sk-0123" in text or "WXYZ" in text] == []
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
