"""Session whose host is on another machine. This process only relays the lines of the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import UNSET

from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.messages import Done, ServerMessage, Started, Suspended, WireError


class RelayedSession:
    """Session of another machine, as the pool and the runner see it."""

    def __init__(
        self,
        id: str,
        limits: Limits,
        on_line: Callable[[bytes, bool], None],
        on_end: Callable[[WireError | None, Any, bool], None],
    ) -> None:
        """`on_line` gets each line of the runner, and True for the last line. `on_end` is called if the
        runner ends without a last line. It gets the execution's error or its value, and True if the runner
        was lost for a reason other than this execution.
        """
        self.id = id
        self.limits = limits
        self.started = False
        self.done_received = False
        self.unresponsive = False
        self.lost = False
        self._on_line = on_line
        self._on_end = on_end
        self._has_ended = False

    @property
    def may_send_more(self) -> bool:
        """True if the runner may still send a message for this session."""
        return not self.done_received

    def relay(self, line: bytes, message: ServerMessage) -> None:
        """Passes a line of the runner to `on_line`."""
        if isinstance(message, Started):
            self.started = True
        is_suspended = isinstance(message, Suspended) and message.state is not UNSET
        is_last = is_suspended or isinstance(message, Done)
        if is_last:
            self.done_received = True
        if not self._has_ended:
            self._on_line(line, is_last)

    def receive(self, message: ServerMessage) -> bool:
        """Not used: the multiplexer calls `relay` instead."""
        raise NotImplementedError

    def mark_lost(self, reason: str) -> None:
        self._end(WireError(code="internal_error", message=f"The runner was lost: {reason}"), None, True)

    def fail(self, error: WireError) -> None:
        self._end(error, None, self.lost)

    def succeed(self, result: Any) -> None:
        self._end(None, result, False)

    def _end(self, error: WireError | None, value: Any, lost: bool) -> None:
        if not self._has_ended and not self.done_received:
            self._has_ended = True
            self._on_end(error, value, lost)


AnySession: TypeAlias = Session | RelayedSession
