"""Headers that abilities add: whose they are, what they are worth, and to whom they go."""

from __future__ import annotations

import pytest

from hutch.doors.abilities import keys
from hutch.doors.abilities.injecting import Header, Injecting
from hutch.doors.abilities.static import constant
from hutch.egress import urls


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
def test_a_key_covers_its_host_and_what_is_below(key: str, url: str, covered: bool) -> None:
    assert keys.read(key, "service.example").covers(urls.parse(url)) is covered


@pytest.mark.parametrize("service", ["twitter", "My Service", "", "a b.example"])
def test_a_service_that_is_called_like_no_host_is_none(service: str) -> None:
    assert keys.read("Authorization", service).host is None


def test_static_headers_without_a_host_go_everywhere_and_credentials_nowhere() -> None:
    bare = keys.read("X", "twitter")
    injecting = Injecting([Header(bare, "X", "static")], [Header(bare, "X", "secret", "id")])
    added = injecting.headers(urls.parse("https://anywhere.example/")).headers
    assert [(each.name, each.value, each.credential) for each in added] == [("X", "static", None)]


def test_values_are_in_nothing_that_is_printed() -> None:
    header = Header(keys.read("example.com::X", ""), "X", "secret-value", "id")
    assert "secret-value" not in f"{header!r} {Injecting([], [header])!r}"


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
def test_a_constant_needs_no_sandbox(code: str, value: str) -> None:
    assert constant(code) == value


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
def test_all_else_does(code: str) -> None:
    assert constant(code) is None
