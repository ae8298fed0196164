from __future__ import annotations

import pytest

from hutch.egress.addresses import Url, parse_url, resolve_redirect


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://api.example.com", "https://api.example.com/"),
        ("HTTPS://API.Example.COM./A?b=C#d", "https://api.example.com/A?b=C"),
        ("https://api.example.com:443/", "https://api.example.com/"),
        ("https://api.example.com:/", "https://api.example.com/"),
        ("http://api.example.com:8080?x", "http://api.example.com:8080/?x"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ("http://[::ffff:7f00:1]/", "http://127.0.0.1/"),
        ("http://[0:0::1]:81/", "http://[::1]:81/"),
    ],
)
def test_url_is_normalized(text: str, expected: str) -> None:
    assert str(parse_url(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/path",
        "api.example.com",
        "ftp://api.example.com/",
        "file:///etc/passwd",
        "data:text/plain,x",
        "https://",
        "https:///path",
        "https://user@api.example.com/",
        "https://user:password@api.example.com/",
        "https://api.example.com\\@evil.example/",
        "https://api.example.com/a b",
        "https://api.example.com/\r\nX: y",
        "https://api.example.com/\x00",
        "https://①②⑦.0.0.1/",
        "https://exämple.com/",
        "https://api.example.com:0/",
        "https://api.example.com:65536/",
        "https://api.example.com:4x/",
        "https://a%2eb/",
        "https://[fe80::1%25eth0]/",
        "https://[::1/",
        "https://1.2.3.4.5/",
        "https://a..b/",
        "https://a/" + "x" * 20_000,
    ],
)
def test_invalid_url_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_url(text)


def test_error_does_not_repeat_a_password() -> None:
    with pytest.raises(ValueError, match="user name") as caught:
        parse_url("https://user:hunter22@api.example.com/")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "domain", "expected"),
    [
        ("twitter.com", "twitter.com", True),
        ("api.twitter.com", "twitter.com", True),
        ("api.twitter.com", "Twitter.COM.", True),
        ("twitter.com", "api.twitter.com", False),
        ("eviltwitter.com", "twitter.com", False),
        ("twitter.com.evil.example", "twitter.com", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.1", False),
        ("twitter.com", "", False),
        ("twitter.com", ".", False),
        ("twitter.com", "com", False),
        ("a.localhost", "localhost", False),
        ("localhost", "localhost", True),
    ],
)
def test_is_under_matches_domain_and_subdomains(host: str, domain: str, expected: bool) -> None:
    assert parse_url(f"https://{host}/").is_under(domain) is expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (b"/b", "https://a.example/b"),
        (b"b?c=d", "https://a.example/x/b?c=d"),
        (b"../../b", "https://a.example/b"),
        (b"?q", "https://a.example/x/y?q"),
        (b"//b.example/c", "https://b.example/c"),
        (b" https://b.example ", "https://b.example/"),
        ("/ä b".encode(), "https://a.example/%C3%A4%20b"),
        (b"/\xe4", "https://a.example/%E4"),
    ],
)
def test_redirect_is_resolved(location: bytes, expected: str) -> None:
    assert str(resolve_redirect(parse_url("https://a.example/x/y?z"), location)) == expected


@pytest.mark.parametrize(
    "location", [b"javascript:alert(1)", b"file:///etc/passwd", b"https://u:p@b.example/", b"http:\\\\b"]
)
def test_redirect_to_another_scheme_is_rejected(location: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        resolve_redirect(parse_url("https://a.example/"), location)


def test_redirect_keeps_the_fragment_unless_it_has_its_own() -> None:
    base = parse_url("https://a.example/#old")
    assert resolve_redirect(base, b"/b") == Url("https", "a.example", 443, "/b", "old")
    assert resolve_redirect(base, b"/b#new").fragment == "new"
