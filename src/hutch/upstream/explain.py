"""From what the SDK and its transports raise to what people and scripts are told."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED
from pydantic import ValidationError

from hutch.errors import UpstreamError
from hutch.upstream import http
from hutch.upstream.entries import Endpoint, ServerConfig
from hutch.upstream.failures import Flaw, Unreachable
from hutch.upstream.process import CannotStart

MAX_TEXT = 500
# In the SDK's words.
_CLOSED = "Connection closed"


def root(error: BaseException) -> BaseException:
    """Of the errors that task groups have wrapped, the first that is no mere consequence of another."""
    found = list(_leaves(error))
    return next((each for each in found if not is_consequence(each)), found[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def is_consequence(error: BaseException) -> bool:
    """Whether it says no more than that the connection is over."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == _CLOSED


def never_sent(error: BaseException) -> bool:
    """Whether the server cannot have seen what was to be sent."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def session_gone(error: MCPError) -> bool:
    """Whether the server does not know our session, and so did nothing."""
    return _status(error) == 404 and error.message == http.SESSION_GONE


def unreachable(config: ServerConfig, error: BaseException) -> Unreachable:
    """Why there is no connection."""
    reach = config.reach
    if isinstance(error, Unreachable):
        return error
    if isinstance(error, CannotStart):
        return Unreachable(str(error), lasting=True)
    if isinstance(error, httpx2.HTTPStatusError):
        return refusal(config, error.response.status_code, http.status(error.response))
    if isinstance(error, MCPError) and (status := _status(error)) is not None:
        return refusal(config, status, error.message)
    if http.SSE_TOO_LARGE in str(error):
        # Over SSE the SDK ends the whole connection for it.
        return Unreachable(f"{http.TOO_LARGE} what SSE can carry", "too_large")
    if isinstance(error, httpx2.TransportError) and isinstance(reach, Endpoint):
        return Unreachable(f"{reach.shown} cannot be reached: {text(error)}")
    if isinstance(error, ValidationError):
        return Unreachable(f"what it says of itself is not as MCP has it: {text(error)}")
    return Unreachable(text(error))


def refusal(config: ServerConfig, status: int, words: str) -> Unreachable:
    if status == 401:
        return Unreachable(login_wanted(config), "login_required", lasting=True)
    where = config.reach.shown if isinstance(config.reach, Endpoint) else config.name
    return Unreachable(f"{where} answers {words}", status=status)


def login_wanted(config: ServerConfig) -> str:
    return f"it wants a login: run `hutch auth {config.name}`"


def failed_call(config: ServerConfig, tool: str, error: MCPError | ValidationError) -> UpstreamError:
    """What a call ended in, the connection being as good as before."""
    if isinstance(error, ValidationError):
        message = f"the result is not as MCP has it: {text(error)}"
        return UpstreamError(config.name, tool, message, kind="invalid_result")
    if isinstance(error.data, Flaw):
        return UpstreamError(config.name, tool, error.message, kind=error.data.kind)
    if http.TOO_LARGE in error.message or http.SSE_TOO_LARGE in error.message:
        return UpstreamError(config.name, tool, f"{http.TOO_LARGE} what is allowed", kind="too_large")
    if error.code == CONNECTION_CLOSED:
        message = f"the server was lost before it answered: {error.message}"
        return UpstreamError(config.name, tool, message, kind="lost")
    status = _status(error)
    if status == 401:
        return UpstreamError(config.name, tool, login_wanted(config), kind="login_required")
    if status is not None and status >= 500:
        return UpstreamError(config.name, tool, error.message, kind="not_connected")
    details = {"code": error.code} if error.data is None else {"code": error.code, "data": error.data}
    return UpstreamError(config.name, tool, error.message, kind="rpc_error", details=details)


def text(error: BaseException) -> str:
    """One line of bounded length, never empty."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}"[:MAX_TEXT]
    if isinstance(error, httpx2.TransportError) and not str(error):
        return type(error).__name__
    return " ".join(str(error).split())[:MAX_TEXT] or type(error).__name__


def _status(error: MCPError) -> int | None:
    data = error.data
    status = data.get("status") if isinstance(data, dict) else None
    return status if isinstance(status, int) else None
