from __future__ import annotations

import pytest

from hutch.egress.fetch import FetchError, Headers, Injected
from hutch.egress.headers import Merged, merge


def lowered(merged: Merged) -> Headers:
    return sorted((name.lower(), value) for name, value in merged.headers)


def test_static_gives_way_to_dynamic_and_both_to_the_wrapper_whatever_their_case() -> None:
    injected = [
        Injected("Authorization", "static"),
        Injected("X-Static", "1"),
        Injected("X-Both", "static"),
        Injected("authorization", "dynamic", "c1"),
        Injected("x-both", "dynamic", "c2"),
    ]
    merged = merge(injected, [("AUTHORIZATION", "own")])
    assert lowered(merged) == [("authorization", "own"), ("x-both", "dynamic"), ("x-static", "1")]


def test_only_credentials_that_are_really_sent_are_named() -> None:
    injected = [
        Injected("Authorization", "a", "c1"),
        Injected("apikey", "b", "c2"),
        Injected("Host", "x", "c3"),
    ]
    assert merge(injected, [("authorization", "own")]).credentials == ("c2",)


def test_cookies_of_all_are_joined_in_their_order() -> None:
    injected = [Injected("Cookie", "a=1;"), Injected("cookie", "b=2", "c1"), Injected("COOKIE", "c=3", "c2")]
    merged = merge(injected, [("Cookie", "d=4"), ("cookie", "e=5")])
    assert merged.headers == [("Cookie", "a=1; b=2; c=3; d=4; e=5")]
    assert merged.credentials == ("c1", "c2")


def test_one_cookie_stays_as_it_is() -> None:
    assert merge([], [("cookie", "a=1; b=2")]).headers == [("Cookie", "a=1; b=2")]
    assert merge([], [("cookie", "")]).headers == []


def test_what_a_guest_sets_twice_is_sent_as_one() -> None:
    assert merge([], [("Accept", "a"), ("accept", "b")]).headers == [("Accept", "a, b")]


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
def test_forbidden_headers_are_dropped_in_any_case_whoever_sets_them(name: str) -> None:
    assert merge([Injected(name, "x", "c1")], [(name, "y"), ("X-Kept", "z")]) == Merged([("X-Kept", "z")], ())


@pytest.mark.parametrize(
    "name", ["", "Authorization\r\nX: y", "a b", "a:", ":authority", "ä", "a\x00", "a\n", "a\t", "(a)"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(FetchError, match="is no name for a header") as caught:
        merge([], [(name, "x")])
    assert caught.value.kind == "bad_header"


@pytest.mark.parametrize(
    "value", ["x\r\nInjected: y", "x\ny", "x\ry", "x\x00y", "x\x1by", "x\x7f", "€", "\ud800"]
)
def test_a_value_that_cannot_be_sent_is_refused_and_not_repeated(value: str) -> None:
    for given in (([Injected("X-Key", f"secret{value}")], []), ([], [("X-Key", f"secret{value}")])):
        with pytest.raises(FetchError, match="header X-Key has line breaks") as caught:
            merge(*given)
        assert "secret" not in str(caught.value)


def test_surrounding_space_is_no_part_of_a_value() -> None:
    assert merge([Injected("A", " x\t")], [("B", "\ty ")]).headers == [("A", "x"), ("B", "y")]


def test_headers_are_bounded_in_number_and_size() -> None:
    with pytest.raises(FetchError, match="more than 256 headers"):
        merge([], [(f"x-{number}", "") for number in range(257)])
    with pytest.raises(FetchError, match="more than 64 KiB"):
        merge([], [("x", "y" * 70_000)])


def test_an_injected_value_is_in_no_repr() -> None:
    assert "hunter22" not in repr([Injected("Authorization", "hunter22", "c1")])
