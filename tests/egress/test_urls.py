from __future__ import annotations

import pytest

from hutch.egress.urls import Url, follow, parse


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
def test_a_url_has_one_form(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


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
def test_what_is_no_url_of_the_web_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_refusal_does_not_repeat_what_may_be_a_password() -> None:
    with pytest.raises(ValueError, match="user name") as caught:
        parse("https://user:hunter22@api.example.com/")
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
def test_a_host_is_under_a_domain_or_not(host: str, domain: str, expected: bool) -> None:
    assert parse(f"https://{host}/").is_under(domain) is expected


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
def test_a_redirect_leads_where_its_location_says(location: bytes, expected: str) -> None:
    assert str(follow(parse("https://a.example/x/y?z"), location)) == expected


@pytest.mark.parametrize(
    "location", [b"javascript:alert(1)", b"file:///etc/passwd", b"https://u:p@b.example/", b"http:\\\\b"]
)
def test_a_redirect_out_of_the_web_is_refused(location: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        follow(parse("https://a.example/"), location)


def test_a_redirect_keeps_the_fragment_unless_it_has_its_own() -> None:
    base = parse("https://a.example/#old")
    assert follow(base, b"/b") == Url("https", "a.example", 443, "/b", "old")
    assert follow(base, b"/b#new").fragment == "new"
