"""Errors of requests, the codes and statuses that protocols share, and the conversion of Hutch's exceptions.

Does not import Starlette, because the gateway also uses this module for requests from jails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hutch.errors import (
    AlreadyExists,
    Busy,
    HutchError,
    InvalidExecution,
    InvalidInput,
    InvalidPackage,
    InvalidText,
    RateLimited,
    StoreError,
    UnstorableValue,
)

SHUTTING_DOWN = "The server is shutting down"
INTERNAL_ERROR = "The server failed; its log says why"
STORE_UNAVAILABLE = "The store cannot be used; the server's log says why"


class ErrorKind(NamedTuple):
    """Status and code of one kind of error."""

    status: int
    code: str


ERROR_KINDS = {
    "invalid_request": ErrorKind(400, "INVALID_REQUEST"),
    "unauthorized": ErrorKind(401, "UNAUTHORIZED"),
    "forbidden": ErrorKind(403, "FORBIDDEN"),
    "not_found": ErrorKind(404, "NOT_FOUND"),
    "method_not_allowed": ErrorKind(405, "METHOD_NOT_ALLOWED"),
    "conflict": ErrorKind(409, "CONFLICT"),
    "too_large": ErrorKind(413, "PAYLOAD_TOO_LARGE"),
    "unsupported_media_type": ErrorKind(415, "UNSUPPORTED_MEDIA_TYPE"),
    "rate_limited": ErrorKind(429, "RATE_LIMITED"),
    "internal": ErrorKind(500, "INTERNAL_ERROR"),
    "busy": ErrorKind(503, "BUSY"),
    "unavailable": ErrorKind(503, "UNAVAILABLE"),
}
"""Error kinds that the shared code raises. A protocol may use other codes for these kinds, and add its own
kinds.
"""

_KIND_BY_REFUSAL = {401: "unauthorized", 403: "forbidden", 503: "unavailable"}


class Refusal(NamedTuple):
    """Denial of access, before a protocol formats it as a response."""

    status: int
    message: str
    headers: Mapping[str, str] | None = None

    def error(self) -> ApiError:
        return ApiError(_KIND_BY_REFUSAL[self.status], self.message, headers=self.headers)


class ApiError(Exception):
    """An error whose message the caller may see. Each protocol turns it into its own response format."""

    def __init__(
        self, kind: str, message: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        """`kind` is a key of the protocol's table of errors. `extra` are further fields of the response."""
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = headers
        self.extra = extra


def method_not_allowed(path: str, method: str, allowed: Iterable[str]) -> ApiError:
    listed = ", ".join(sorted(allowed))
    message = f"{path} does not take {method}; it takes {listed}"
    return ApiError("method_not_allowed", message, headers={"Allow": listed})


def _retry_after_header(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def to_api_error(error: Exception, logger: logging.Logger) -> ApiError:
    """Converts an exception. Logs details that the caller may not see."""
    match error:
        case ApiError():
            return error
        case RateLimited():
            extra = {} if error.limit is None else {"limit": error.limit}
            headers = _retry_after_header(error.retry_after)
            return ApiError("rate_limited", str(error), headers=headers, **extra)
        case Busy():
            return ApiError("busy", str(error), headers=_retry_after_header(error.retry_after))
        case InvalidExecution() | InvalidInput() | InvalidPackage() | InvalidText() | UnstorableValue():
            return ApiError("invalid_request", str(error))
        case AlreadyExists():
            return ApiError("conflict", str(error))
        case StoreError():
            logger.error("the store failed: %s", error)
            return ApiError("unavailable", STORE_UNAVAILABLE, headers=_retry_after_header(1))
        case HutchError():
            logger.error("a request failed: %s", error)
        case _:
            logger.error("a request failed", exc_info=error)
    return ApiError("internal", INTERNAL_ERROR)
