from __future__ import annotations

import pytest

from hutch.egress.client.headers import MergedHeaders, merge_headers
from hutch.egress.client.models import FetchError, Headers, InjectedHeader


def lowered(merged: MergedHeaders) -> Headers:
    return sorted((name.lower(), value) for name, value in merged.headers)


def test_guest_header_overrides_dynamic_and_static_ones() -> None:
    injected = [
        InjectedHeader("Authorization", "static"),
        InjectedHeader("X-Static", "1"),
        InjectedHeader("X-Both", "static"),
        InjectedHeader("authorization", "dynamic", "c1"),
        InjectedHeader("x-both", "dynamic", "c2"),
    ]
    merged = merge_headers(injected, [("AUTHORIZATION", "own")])
    assert lowered(merged) == [("authorization", "own"), ("x-both", "dynamic"), ("x-static", "1")]


def test_static_type_overrides_the_one_that_fetch_adds() -> None:
    static = [InjectedHeader("Content-Type", "application/json")]
    added = [("content-type", "text/plain;charset=UTF-8")]
    assert lowered(merge_headers(static, added)) == [("content-type", "application/json")]
    assert lowered(merge_headers([], added)) == added
    assert lowered(merge_headers(static, [("content-type", "text/csv")])) == [("content-type", "text/csv")]


def test_only_credentials_that_are_sent_are_listed() -> None:
    injected = [
        InjectedHeader("Authorization", "a", "c1"),
        InjectedHeader("apikey", "b", "c2"),
        InjectedHeader("Host", "x", "c3"),
    ]
    assert merge_headers(injected, [("authorization", "own")]).credentials == ("c2",)


def test_all_cookies_are_joined_in_order() -> None:
    injected = [
        InjectedHeader("Cookie", "a=1;"),
        InjectedHeader("cookie", "b=2", "c1"),
        InjectedHeader("COOKIE", "c=3", "c2"),
    ]
    merged = merge_headers(injected, [("Cookie", "d=4"), ("cookie", "e=5")])
    assert merged.headers == [("Cookie", "a=1; b=2; c=3; d=4; e=5")]
    assert merged.credentials == ("c1", "c2")


def test_single_cookie_is_unchanged() -> None:
    assert merge_headers([], [("cookie", "a=1; b=2")]).headers == [("Cookie", "a=1; b=2")]
    assert merge_headers([], [("cookie", "")]).headers == []


def test_repeated_guest_header_is_joined() -> None:
    assert merge_headers([], [("Accept", "a"), ("accept", "b")]).headers == [("Accept", "a, b")]


@pytest.mark.parametrize(
    "name",
    [
        *("Content-Length", "content-length", "CONTENT-LENGTH", "Transfer-Encoding", "transfer-encoding"),
        *(
            "Host",
            "hOsT",
            "Connection",
            "Keep-Alive",
            "Upgrade",
            "TE",
            "Trailer",
            "Expect",
            "Accept-Encoding",
        ),
        *("Proxy-Authorization", "proxy-connection", "Proxy-Anything"),
    ],
)
def test_forbidden_headers_are_dropped(name: str) -> None:
    assert merge_headers([InjectedHeader(name, "x", "c1")], [(name, "y"), ("X-Kept", "z")]) == MergedHeaders(
        [("X-Kept", "z")], ()
    )


@pytest.mark.parametrize(
    "name", ["", "Authorization\r\nX: y", "a b", "a:", ":authority", "ä", "a\x00", "a\n", "a\t", "(a)"]
)
def test_invalid_header_name_is_rejected(name: str) -> None:
    with pytest.raises(FetchError, match="is not a valid header name") as caught:
        merge_headers([], [(name, "x")])
    assert caught.value.kind == "bad_header"


@pytest.mark.parametrize(
    "value", ["x\r\nInjected: y", "x\ny", "x\ry", "x\x00y", "x\x1by", "x\x7f", "€", "\ud800"]
)
def test_invalid_header_value_is_rejected_and_not_repeated(value: str) -> None:
    for given in (([InjectedHeader("X-Key", f"secret{value}")], []), ([], [("X-Key", f"secret{value}")])):
        with pytest.raises(FetchError, match="header X-Key has line breaks") as caught:
            merge_headers(*given)
        assert "secret" not in str(caught.value)


def test_surrounding_whitespace_is_stripped() -> None:
    assert merge_headers([InjectedHeader("A", " x\t")], [("B", "\ty ")]).headers == [("A", "x"), ("B", "y")]


def test_headers_are_limited_in_number_and_size() -> None:
    with pytest.raises(FetchError, match="more than 256 headers"):
        merge_headers([], [(f"x-{number}", "") for number in range(257)])
    with pytest.raises(FetchError, match="more than 64 KiB"):
        merge_headers([], [("x", "y" * 70_000)])


def test_injected_value_is_not_in_repr() -> None:
    assert "hunter22" not in repr([InjectedHeader("Authorization", "hunter22", "c1")])
