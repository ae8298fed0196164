"""Limits the open MCP sessions of each user, so that no user can take all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hutch.http.auth import Caller
from hutch.http.errors import Refusal

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

# Key in the ASGI scope of the SessionShare that a request uses if it opens a session.
SESSION_SHARE = "hutch.mcp_session"
# Time after which a session without requests is closed.
IDLE_SECONDS = 1_800.0
RETRY_SECONDS = 60


class SessionShares:
    """Counts open sessions. All users together may have `max_sessions`, and each user `max_per_user`. The
    operator may have `max_sessions` more, so that users cannot lock out the operator.
    """

    def __init__(self, max_sessions: int, max_per_user: int) -> None:
        self._max_sessions = max_sessions
        self._max_per_user = min(max_per_user, max_sessions)
        self._by_user: Counter[str] = Counter()
        self._of_users = 0
        self._of_operator = 0

    def reserve(self, caller: Caller) -> SessionShare | Refusal:
        """Reserves a session until the share is released."""
        if caller.identity is None:
            if self._of_operator >= self._max_sessions:
                return _refusal(503, f"{self._max_sessions} MCP sessions are open", "max_mcp_sessions")
            self._of_operator += 1
            return SessionShare(self, None)
        user = caller.identity.user.id
        if self._by_user[user] >= self._max_per_user:
            message = f"A user may have at most {self._max_per_user} open MCP sessions"
            return _refusal(429, message, "max_mcp_sessions_per_user")
        if self._of_users >= self._max_sessions:
            return _refusal(503, f"{self._max_sessions} MCP sessions are open", "max_mcp_sessions")
        self._by_user[user] += 1
        self._of_users += 1
        return SessionShare(self, user)

    def release(self, user: str | None) -> None:
        if user is None:
            self._of_operator -= 1
            return
        self._of_users -= 1
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]


class SessionShare:
    """A reserved session. Released when the request ends, or, if the request opened a session, when that
    session ends.
    """

    def __init__(self, shares: SessionShares, user: str | None) -> None:
        self._shares = shares
        self._user = user
        self._is_in_session = False

    def keep_for(self, session: ServerSession) -> None:
        if not self._is_in_session:
            self._is_in_session = True
            # Use a private attribute, because the SDK offers no public access to the exit stack that it
            # closes together with the session.
            session._connection.exit_stack.callback(self._shares.release, self._user)

    def end_request(self) -> None:
        if not self._is_in_session:
            self._shares.release(self._user)


def _refusal(status: int, message: str, setting: str) -> Refusal:
    advice = (
        "Close a session (DELETE /mcp), or try again later: a session without requests ends after"
        f" {IDLE_SECONDS:.0f} s"
    )
    return Refusal(status, f"{message} (setting {setting}). {advice}", {"Retry-After": str(RETRY_SECONDS)})
