"""Expectations of the host about the other end of a channel, and checks of its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from hutch.session.calls.description import MAX_NAME_CHARS
from hutch.session.messages import WireError
from hutch.session.tools.provider import MAX_MESSAGE_CHARS

BACKSTOP_SECONDS = 0.1
START_TIMEOUT_SECONDS = 60.0

# Error codes that are accepted from a runner. `timeout` is missing, because the host checks it by its own
# clock.
GUEST_CODES = frozenset({"runtime_error", "serialization_error", "result_too_large"})
"""Error codes that are accepted from a runner that shares its realm with the guest. The guest could forge
these codes, but that would affect only the guest itself.
"""
RUNNER_CODES = GUEST_CODES | {"memory_limit", "internal_error"}


class Peer(msgspec.Struct, eq=False, kw_only=True):
    """The other end of a channel. All sessions of the channel share it."""

    send: Callable[[bytes], None]
    writable: Callable[[], Awaitable[None]] | None = None
    """Waits while the channel's buffer is full."""
    full_manifests: bool = True
    """True if the peer needs the type declarations of tools, which Hutch's own runners do not use."""
    trusted: bool = False
    """True if the peer is itself a host, which has checked its runner."""
    codes: frozenset[str] = RUNNER_CODES
    """Error codes that are accepted from the peer."""
    start_seconds: float = START_TIMEOUT_SECONDS
    """Time in which the peer has to start an execution. The time limit of the execution applies if it is
    longer. With 0, an execution that does not start counts as timed out.
    """
    backstop_seconds: float = BACKSTOP_SECONDS
    """Time beyond the time limit after which the host cancels an execution. 0 if the peer leaves the time
    limit to the host.
    """
    max_silence_seconds: float = 0.0
    """Time after which the peer counts as lost if it has neither started an execution nor sent anything else.
    0 for no such limit.
    """
    lines_received: int = 0
    """Number of lines received from the peer."""


def limit_error(error: WireError) -> WireError:
    """Returns an error of a runner with bounded texts, and without fields that only a host can know."""
    # Only a host knows when a runner becomes free, so `retry_after` from a runner is dropped.
    error = msgspec.structs.replace(error, retry_after=None)
    if len(error.message) > MAX_MESSAGE_CHARS or len(error.name or "") > MAX_NAME_CHARS:
        name, message = (
            error.name and error.name[:MAX_NAME_CHARS],
            f"{error.message[:MAX_MESSAGE_CHARS]}…",
        )
        error = msgspec.structs.replace(error, name=name, message=message)
    if error.stack is not None and len(error.stack) > MAX_MESSAGE_CHARS:
        error = msgspec.structs.replace(error, stack=error.stack[:MAX_MESSAGE_CHARS])
    return error
