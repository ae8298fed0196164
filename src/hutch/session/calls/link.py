"""Connects tool calls to the session in which their guest runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from hutch.session.files.calls import FileCalls


class SessionLink(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The functions of a session that its tool calls use. A run that continues in another session gets a new
    link.
    """

    send: Callable[[bytes], None]
    on_abuse: Callable[[str], None]
    """Called with the reason if the runner sends too many invalid calls."""
    writable: Callable[[], Awaitable[None]] | None = None
    """Waits while the channel's buffer is full."""
    before_call: Callable[[bool], Awaitable[None]] | None = None
    """Awaited before each call, with True if the tool is idempotent. If it raises ToolError, the call fails.
    """
    on_all_pending: Callable[[], None] | None = None
    """Called when all open calls are pending. None if the run cannot be suspended."""
    on_long_wait: Callable[[], None] | None = None
    """Called when tools are running and the guest has neither made a call nor received a reply for
    `max_wait_seconds`.
    """
    max_wait_seconds: float = 0.0
    """0 for never."""
    suspends_on_server: bool = False
    """True if the guest runs on a server, which suspends the run if a tool raises Suspend."""
    suspend_problem: str = ""
    """Reason why the server cannot suspend the run. It is added to the error of a tool that raises Suspend.
    Empty if the server can suspend the run, or if there is no server.
    """
    files: FileCalls | None = None
    """Answers calls of the guest's `files`. None if the guest has no `files`."""

    @property
    def can_suspend(self) -> bool:
        """True if the run can wait in the store for the result of a call whose tool raises Suspend."""
        return self.on_all_pending is not None or self.suspends_on_server

    def without_session(self) -> SessionLink:
        """Returns a copy without references to the session, so that an ended session is freed."""
        return msgspec.structs.replace(
            self,
            on_abuse=_ignore,
            on_long_wait=None,
            on_all_pending=None if self.on_all_pending is None else _ignore,
            files=None,
        )


def _ignore(_: str = "") -> None: ...
