"""Signs browsers in: one-time links, and sessions in cookies that stand for an API key.

A session exists only in the memory of the server, so that a restart signs everyone out. The key itself never
reaches the browser.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import Response

COOKIE = "hutch_session"
CSRF_HEADER = "x-hutch-csrf"
LINK_SECONDS = 600
IDLE_SECONDS = 12 * 3600
SESSION_SECONDS = 7 * 24 * 3600
MAX_LINKS = 100
MAX_SESSIONS = 1_000
# Limits per key. Without them, the holder of one key could displace the links and sessions of other keys by
# creating many.
MAX_LINKS_PER_KEY = 10
MAX_SESSIONS_PER_KEY = 50

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass
class BrowserSession:
    """A signed-in browser."""

    api_key: str
    csrf_token: str
    created: float
    used: float


class BrowserSessions:
    """Creates and finds sessions. `now` returns the time in seconds; tests replace it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # Expiry and API key of each unused link.
        self._links: dict[str, tuple[float, str]] = {}
        self._sessions: dict[str, BrowserSession] = {}

    def create_link(self, api_key: str) -> str:
        """Returns the token of a link that signs one browser in with this key."""
        now = self._now()
        self._links = {token: link for token, link in self._links.items() if link[0] > now}
        own = [token for token, (_, key) in self._links.items() if key == api_key]
        for token in own[: len(own) - MAX_LINKS_PER_KEY + 1]:
            del self._links[token]
        while len(self._links) >= MAX_LINKS:
            del self._links[next(iter(self._links))]
        token = secrets.token_urlsafe(32)
        self._links[token] = (now + LINK_SECONDS, api_key)
        return token

    def redeem_link(self, token: str) -> str | None:
        """Returns the API key of a link and invalidates the link. Returns None if the link is not valid."""
        expiry, api_key = self._links.pop(token, (0.0, ""))
        return api_key if expiry > self._now() else None

    def sign_in(self, api_key: str, response: Response, *, secure: bool) -> BrowserSession:
        """Starts a session and sets its cookie. `secure`: the page was requested over HTTPS."""
        now = self._now()
        self._sessions = {key: session for key, session in self._sessions.items() if self._is_valid(session)}
        by_use = sorted(self._sessions, key=lambda key: self._sessions[key].used)
        own = [key for key in by_use if self._sessions[key].api_key == api_key]
        if len(own) >= MAX_SESSIONS_PER_KEY:
            del self._sessions[own[0]]
        elif len(by_use) >= MAX_SESSIONS:
            del self._sessions[by_use[0]]
        session_id = secrets.token_urlsafe(32)
        session = BrowserSession(api_key, secrets.token_urlsafe(32), now, now)
        self._sessions[session_id] = session
        response.set_cookie(
            COOKIE, session_id, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure
        )
        return session

    def sign_out(self, connection: HTTPConnection, response: Response) -> None:
        self._sessions.pop(connection.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def find(self, connection: HTTPConnection) -> BrowserSession | None:
        """Returns the session of a request, or None. Restarts the idle timeout of the session.

        Only pages of this server can use a session. The cookie alone does not ensure this: browsers send it
        with requests from pages on other ports of the same host, too, because they count as the same site.
        """
        if not _is_from_own_page(connection):
            return None
        session = self._sessions.get(connection.cookies.get(COOKIE, ""))
        if session is None or not self._is_valid(session):
            return None
        session.used = self._now()
        return session

    def api_key(self, connection: HTTPConnection) -> str:
        """Returns the API key for which the session of a request stands, or an empty string.

        A request that may change something must also send the CSRF token of the session. WebSockets are
        opened by GET and cannot send the token. The check of `Origin` and the SameSite attribute of the
        cookie protect them.
        """
        session = self.find(connection)
        if session is None:
            return ""
        if connection.scope.get("method", "GET") not in _SAFE_METHODS:
            sent = connection.headers.get(CSRF_HEADER, "").encode("latin-1")
            if not hmac.compare_digest(sent, session.csrf_token.encode()):
                return ""
        return session.api_key

    def _is_valid(self, session: BrowserSession) -> bool:
        now = self._now()
        return now < session.created + SESSION_SECONDS and now < session.used + IDLE_SECONDS


def _is_from_own_page(connection: HTTPConnection) -> bool:
    headers = connection.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    # Check Origin instead, because browsers send no Sec-Fetch-Site over plain HTTP, except to loopback.
    origin = headers.get("origin")
    return origin is None or origin.lower().partition("://")[2] == headers.get("host", "").lower()
