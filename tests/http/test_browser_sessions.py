"""Sign-in links and browser sessions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import Response

from hutch.http import browser_sessions
from hutch.http.browser_sessions import COOKIE, CSRF_HEADER, BrowserSessions


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def browsers(clock: Clock) -> BrowserSessions:
    return BrowserSessions(clock)


def connection(cookie: str = "", method: str = "GET", **headers: str) -> HTTPConnection:
    values = {"cookie": cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in values.items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": "/", "headers": raw}
    return HTTPConnection(scope)


def sign_in(browsers: BrowserSessions, api_key: str = "the-key") -> tuple[str, str]:
    """Returns the value of the Cookie header and the CSRF token."""
    response = Response()
    session = browsers.sign_in(api_key, response, secure=False)
    set_cookie = response.headers["set-cookie"]
    match = re.match(rf"({COOKIE}=[^;]+);", set_cookie)
    assert match is not None
    return match[1], session.csrf_token


def test_link_works_once(browsers: BrowserSessions) -> None:
    token = browsers.create_link("the-key")
    assert browsers.redeem_link(token) == "the-key"
    assert browsers.redeem_link(token) is None
    assert browsers.redeem_link("guessed") is None


def test_link_expires(browsers: BrowserSessions, clock: Clock) -> None:
    token = browsers.create_link("the-key")
    clock.now += browser_sessions.LINK_SECONDS + 1
    assert browsers.redeem_link(token) is None


def test_only_the_newest_links_are_kept(browsers: BrowserSessions) -> None:
    first = browsers.create_link("the-key")
    for number in range(browser_sessions.MAX_LINKS):
        browsers.create_link(f"key {number}")
    assert browsers.redeem_link(first) is None


def test_key_cannot_use_up_the_links_and_sessions_of_another(browsers: BrowserSessions, clock: Clock) -> None:
    link = browsers.create_link("operators-key")
    cookie, _ = sign_in(browsers, "operators-key")
    clock.now += 1
    for _ in range(browser_sessions.MAX_SESSIONS):
        browsers.create_link("users-key")
        sign_in(browsers, "users-key")
    assert browsers.api_key(connection(cookie)) == "operators-key"
    assert browsers.redeem_link(link) == "operators-key"


def test_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(browsers: BrowserSessions) -> None:
    response = Response()
    browsers.sign_in("the-key", response, secure=True)
    flags = response.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert "secure" in flags
    assert "the-key" not in flags


def test_session_stands_for_the_key(browsers: BrowserSessions) -> None:
    cookie, _ = sign_in(browsers)
    assert browsers.api_key(connection(cookie)) == "the-key"
    assert browsers.api_key(connection(f"{COOKIE}=guessed")) == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_change_needs_the_csrf_token(browsers: BrowserSessions, method: str) -> None:
    cookie, csrf = sign_in(browsers)
    assert browsers.api_key(connection(cookie, method)) == ""
    assert browsers.api_key(connection(cookie, method, **{CSRF_HEADER: "wrong"})) == ""
    assert browsers.api_key(connection(cookie, method, **{CSRF_HEADER: csrf})) == "the-key"


def test_unused_session_expires(browsers: BrowserSessions, clock: Clock) -> None:
    cookie, _ = sign_in(browsers)
    clock.now += browser_sessions.IDLE_SECONDS - 1
    assert browsers.api_key(connection(cookie)) == "the-key"
    clock.now += browser_sessions.IDLE_SECONDS + 1
    assert browsers.api_key(connection(cookie)) == ""


def test_session_that_is_used_all_the_time_expires_too(browsers: BrowserSessions, clock: Clock) -> None:
    cookie, _ = sign_in(browsers)
    end = clock.now + browser_sessions.SESSION_SECONDS
    while clock.now < end:
        assert browsers.api_key(connection(cookie)) == "the-key"
        clock.now += browser_sessions.IDLE_SECONDS / 2
    assert browsers.api_key(connection(cookie)) == ""


def test_signing_out_ends_the_session(browsers: BrowserSessions) -> None:
    cookie, _ = sign_in(browsers)
    response = Response()
    browsers.sign_out(connection(cookie), response)
    assert browsers.api_key(connection(cookie)) == ""
    assert "max-age=0" in response.headers["set-cookie"].lower()


def test_least_recently_used_session_is_dropped(browsers: BrowserSessions, clock: Clock) -> None:
    first, _ = sign_in(browsers)
    second, _ = sign_in(browsers)
    clock.now += 1
    browsers.find(connection(first))
    for number in range(browser_sessions.MAX_SESSIONS - 1):
        sign_in(browsers, f"key {number}")
    assert browsers.find(connection(first)) is not None
    assert browsers.find(connection(second)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost:8000"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
    ],
)
def test_page_on_another_port_cannot_use_the_session(browsers: BrowserSessions, headers: dict) -> None:
    cookie, csrf = sign_in(browsers)
    token = {CSRF_HEADER: csrf, "host": "localhost:8000"}
    assert browsers.api_key(connection(cookie, "GET", **token, **headers)) == ""
    assert browsers.api_key(connection(cookie, "POST", **token, **headers)) == ""
    own = {"sec_fetch_site": "same-origin", "origin": "http://localhost:8000"}
    assert browsers.api_key(connection(cookie, "POST", **token, **own)) == "the-key"
