"""What can go wrong between us and a server, before it becomes an UpstreamError."""

from __future__ import annotations

import msgspec


class Flaw(msgspec.Struct, frozen=True):
    """What our own transports attach to an error that the server did not send."""

    kind: str


class Unreachable(Exception):
    """There is no connection to the server, and why. `lasting`: trying again by itself is of no use."""

    def __init__(
        self, reason: str, kind: str = "not_connected", *, lasting: bool = False, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.lasting = lasting
        self.status = status
        self.complaint = ""
        """The last that the server said on stderr."""


class NotSent(Exception):
    """The connection was gone before the server could have seen the call: it may be made again."""
