"""The codes of REP and of JSON-RPC, and the error object that both put on the wire.

Nothing is imported here but what Python has loaded anyway: it is needed before the first answer.
"""

from __future__ import annotations

from typing import Any

# REP, section 6.
UNSUPPORTED_VERSION = 1001
UNSUPPORTED_KIND = 1002
INVALID_IR = 1003
STEP_FAILED = 2001
BROKEN_TRANSPORT = 3001
PANIC = 3002

# JSON-RPC 2.0, section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

TIMEOUT = "Timeout"
CANCELLED = "Cancelled"
"""What `data.cause` says of an end that was nobody's mistake."""


class RpcError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def wire(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


def failure(
    code: int,
    message: str,
    *,
    step_id: str | None = None,
    attempt: int = 0,
    retriable: bool = False,
    details: Any = None,
    cause: str | None = None,
) -> dict[str, Any]:
    """A REP error, with `data` as section 6 has it."""
    data: dict[str, Any] = {
        "step_id": step_id,
        "attempt": attempt,
        "retriable": retriable,
        "details": {} if details is None else details,
    }
    if cause is not None:
        data["cause"] = cause
    return {"code": code, "message": message, "data": data}
