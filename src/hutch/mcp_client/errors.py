"""Internal errors of the MCP client, which are later converted to UpstreamError."""

from __future__ import annotations

import msgspec


class TransportFault(msgspec.Struct, frozen=True):
    """Marks an error response that Hutch's transport created."""

    kind: str


class ServerUnreachable(Exception):
    """Raised if there is no connection to the server. If `lasting`, automatic retries would not help."""

    def __init__(
        self, reason: str, kind: str = "not_connected", *, lasting: bool = False, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.lasting = lasting
        self.status = status
        self.stderr_tail = ""
        """Last line of the server's stderr."""


class CallNotSent(Exception):
    """Raised if the connection was lost before the server can have received the call. The call can be
    repeated.
    """
