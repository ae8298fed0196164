from __future__ import annotations

import pprint
import traceback

import msgspec
import pytest

from hutch.errors import InvalidInput, VaultError
from hutch.store import rows
from hutch.store.rows import Credential
from hutch.vault import credentials, sealing
from hutch.vault.credentials import Name, Secret
from hutch.vault.datakeys import DataKey, DataKeys

KEYS = DataKeys([DataKey(b"d" * 32)])
VALUE = "Bearer sk-0123456789abcdefghijWXYZ"


def credential(value: str = VALUE) -> Credential:
    now = rows.now()
    about = Name("api.example.com", "header", "Authorization")
    return Credential(
        id="cred_1",
        user_id="user_a",
        domain=about.domain,
        kind=about.kind,
        key=about.key,
        sealed=credentials.seal(KEYS, "user_a", about, value),
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
def test_names_are_kept_as_urls_have_them(domain: str, key: str, expected: str) -> None:
    assert str(credentials.name(domain, "header", key)) == expected


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
def test_what_is_no_host_is_refused(domain: str) -> None:
    with pytest.raises(InvalidInput, match=r"^domain: expected the name of a host"):
        credentials.name(domain, "header", "x")


@pytest.mark.parametrize(
    "key", ["", "a b", "a:b", "a\r\nb", "ä", "X-Key: sk-secret", "Authorization=sk-secret"]
)
@pytest.mark.parametrize("kind", ["header", "cookie", "auth_token"])
def test_what_is_no_header_is_refused_and_not_repeated(kind: str, key: str) -> None:
    with pytest.raises(InvalidInput, match=r"^key: ") as caught:
        credentials.name("example.com", kind, key)
    assert "secret" not in str(caught.value)


def test_keys_of_queries_and_bodies_may_be_anything_printable() -> None:
    assert credentials.name("example.com", "query", "filter[id]").key == "filter[id]"
    assert credentials.name("example.com", "body", "schlüssel").key == "schlüssel"
    with pytest.raises(InvalidInput, match="control characters"):
        credentials.name("example.com", "query", "a\nb")


def test_a_key_about_another_domain_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"key: it is about another domain than example\.com"):
        credentials.name("example.com", "header", "other.example::X-Key")
    assert credentials.parse_name("[::1]::X-Key", "header") == Name("::1", "header", "X-Key")
    with pytest.raises(InvalidInput, match=r"expected both, such as"):
        credentials.parse_name("sk-secret", "header")


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="kind: expected one of header, cookie, auth_token, query, body"):
        credentials.name("example.com", "oauth", "x")


# --- values ---


@pytest.mark.parametrize("bad", ["\r", "\n", "\r\nHost: evil", "\0", "\x1b", "\x7f", "\x0b"])
@pytest.mark.parametrize("kind", ["header", "cookie", "auth_token"])
def test_values_of_headers_have_no_control_characters(kind: str, bad: str) -> None:
    with pytest.raises(InvalidInput, match="control character") as caught:
        credentials.check_value(kind, f"{VALUE}{bad}x")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("value", ["", " a", "a ", "\ta", "☃", "\ud800", "x" * 65_537, "ä" * 40_000])
def test_other_values_that_no_header_has_are_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"^value: ") as caught:
        credentials.check_value("header", value)
    assert len(str(caught.value)) < 120


def test_values_that_headers_may_have_are_taken() -> None:
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
def test_the_last_four_show_only_of_what_is_long(value: str, hint: str) -> None:
    assert credentials.hint(value) == hint


# --- sealing ---


def test_a_value_opens_for_whom_and_what_it_is_about() -> None:
    assert credentials.unseal(KEYS, credential()).value == VALUE


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
def test_a_row_that_was_moved_does_not_open(change: dict[str, str]) -> None:
    moved = msgspec.structs.replace(credential(), **change)
    with pytest.raises(VaultError, match="altered, or is about something else") as caught:
        credentials.unseal(KEYS, moved)
    assert f"{moved.domain}::{moved.key}" in str(caught.value)


def test_the_case_of_a_name_does_not_matter() -> None:
    assert credentials.unseal(KEYS, msgspec.structs.replace(credential(), key="AUTHORIZATION")).value == VALUE


def test_a_row_of_another_data_key_says_which() -> None:
    with pytest.raises(
        sealing.KeyMissing, match=r"api\.example\.com::Authorization .* the data key [0-9a-f]{12}"
    ):
        credentials.unseal(DataKeys([DataKey(b"e" * 32)]), credential())


def test_values_show_in_nothing_that_is_printed() -> None:
    secret = credentials.unseal(KEYS, credential())
    shown = [repr(secret), str(secret), f"{secret}", pprint.pformat([secret])]
    shown += [repr(secret.credential), repr({"a": secret})]
    # By which rich would print all fields of a struct.
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
