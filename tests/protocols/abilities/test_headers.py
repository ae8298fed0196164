"""Headers that are added to a wrapper's requests: their names, literal values, and the hosts to which they
are sent.
"""

from __future__ import annotations

import pytest

from hutch.egress import addresses
from hutch.protocols.abilities.headers import HeaderInjector, WrapperHeader, literal_value, parse_header_key


@pytest.mark.parametrize(
    ("key", "url", "covered"),
    [
        ("example.com::A", "https://example.com/", True),
        ("EXAMPLE.com::A", "https://example.COM/", True),
        ("example.com::A", "https://api.example.com/", True),
        ("example.com::A", "https://example.com:8443/", True),
        ("example.com::A", "https://example.com./", True),
        ("example.com::A", "https://evilexample.com/", False),
        ("example.com::A", "https://example.com.evil.net/", False),
        ("api.example.com::A", "https://example.com/", False),
        ("example.com:8443::A", "https://example.com:8443/", True),
        ("example.com:8443::A", "https://example.com/", False),
        ("127.0.0.1::A", "https://127.0.0.1/", True),
        ("0.0.1::A", "https://127.0.0.1/", False),
        ("[::1]::A", "https://[::1]/", True),
        ("[::1]:8443::A", "https://[::1]:8443/", True),
        ("[::1]:8443::A", "https://[::1]/", False),
        ("bücher.example::A", "https://xn--bcher-kva.example/", True),
        ("A", "https://service.example/", True),
        ("A", "https://other.example/", False),
    ],
)
def test_key_covers_its_host_and_subdomains(key: str, url: str, covered: bool) -> None:
    assert parse_header_key(key, "service.example").covers(addresses.parse_url(url)) is covered


@pytest.mark.parametrize("service", ["twitter", "My Service", "", "a b.example"])
def test_service_name_that_is_not_a_host_gives_no_host(service: str) -> None:
    assert parse_header_key("Authorization", service).host is None


def test_static_headers_without_a_host_are_sent_everywhere_and_credentials_nowhere() -> None:
    bare = parse_header_key("X", "twitter")
    injector = HeaderInjector(
        [WrapperHeader(bare, "X", "static")], [WrapperHeader(bare, "X", "secret", "id")]
    )
    added = injector.inject(addresses.parse_url("https://anywhere.example/")).headers
    assert [(each.name, each.value, each.credential) for each in added] == [("X", "static", None)]


def test_repr_contains_no_values() -> None:
    header = WrapperHeader(parse_header_key("example.com::X", ""), "X", "secret-value", "id")
    assert "secret-value" not in f"{header!r} {HeaderInjector([], [header])!r}"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ('() => "v"', "v"),
        ("()=>'v'", "v"),
        ("  ( ) =>\n 'v w'\n", "v w"),
        ("() => ''", ""),
        (r"() => 'it\'s'", "it's"),
        (r'() => "a\\b\"c"', 'a\\b"c'),
        ('() => "it\'s"', "it's"),
        ("() => 'é€'", "é€"),
    ],
)
def test_literal_is_evaluated_without_a_sandbox(code: str, value: str) -> None:
    assert literal_value(code) == value


@pytest.mark.parametrize(
    "code",
    [
        "() => `v`",
        "() => 'a' + 'b'",
        "() => 'a'; evil()",
        "() => 'a', evil()",
        "()\n=> 'a'",
        "() => 'a\nb'",
        r"() => '\x41'",
        r"() => 'a\n'",
        r"() => '\u0041'",
        "() => 'a\\\nb'",
        "(x) => 'a'",
        "async () => 'a'",
        "() => { return 'a' }",
        "() => 'a' // b",
        "'a'",
        "() => 'a\"",
        "() => ''.constructor.constructor('return 1')()",
    ],
)
def test_other_code_is_not_evaluated(code: str) -> None:
    assert literal_value(code) is None
