"""Translates errors of the SDK and of the transports into readable messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

from hutch.errors import UpstreamError
from hutch.mcp_client.config import HttpConfig, ServerConfig
from hutch.mcp_client.errors import ServerUnreachable, TransportFault
from hutch.mcp_client.transports import http
from hutch.mcp_client.transports.long_messages import ID_FIRST, ID_LAST, SSE_TOO_LARGE, TOO_LARGE, VERSION
from hutch.mcp_client.transports.process import ServerStartError
from hutch.text import printable

MAX_ERROR_CHARS = 500
# The SDK's messages with these prefixes quote secrets, so they are replaced by the messages on the right.
_OAUTH_SECRETS = {
    "Invalid token response": "the authorization server's token response is not valid",
    "Invalid registration response": "the authorization server's registration response is not valid",
    "State parameter mismatch": "the state of the redirect does not match",
}
_OAUTH_RESPONSE = re.compile(
    r"(?P<what>(?:Token exchange failed \(\d+\)|Registration failed: \d+)"
    r"(?: \(redirected to [^)]*\))?):? ?(?P<body>.*)",
    re.DOTALL,
)
# Message of the SDK's error for a closed connection.
_SDK_CLOSED = "Connection closed"

# Matches the start of a response. A request of the server may have the same id, but does not match.
_RESPONSE = re.compile(rb"(?:" + VERSION + rb'\s*,\s*)?"(?:result|error)"\s*:')
_RESPONSE_FIRST = re.compile(rb"\s*\{\s*" + _RESPONSE.pattern)


def root_cause(error: BaseException) -> BaseException:
    """Returns the first error in an exception group that is not merely the consequence of a closed
    connection.
    """
    errors = list(_leaves(error))
    return next((candidate for candidate in errors if not is_consequence(candidate)), errors[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for nested in error.exceptions:
            yield from _leaves(nested)
    else:
        yield error


def is_consequence(error: BaseException) -> bool:
    """Returns True if the error only says that the connection is closed."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == _SDK_CLOSED


def never_sent(error: BaseException) -> bool:
    """Returns True if the server cannot have received the request."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def is_session_lost(error: MCPError) -> bool:
    """Returns True if the server has forgotten the session, and therefore has not run the call."""
    return _http_status(error) == 404 and error.message == http.SESSION_NOT_FOUND


def unreachable_error(config: ServerConfig, error: BaseException) -> ServerUnreachable:
    transport = config.transport
    if isinstance(error, ServerUnreachable):
        return error
    if isinstance(error, ServerStartError):
        return ServerUnreachable(str(error), lasting=True)
    if isinstance(error, httpx2.HTTPStatusError):
        return refusal_error(config, error.response.status_code, http.status_line(error.response))
    if isinstance(error, MCPError) and (status := _http_status(error)) is not None:
        return refusal_error(config, status, error.message)
    if SSE_TOO_LARGE in str(error):
        # Over SSE, the SDK closes the whole connection after an oversized event.
        return ServerUnreachable(f"{TOO_LARGE} the limit for one event over SSE", "too_large")
    if isinstance(error, httpx2.TransportError) and isinstance(transport, HttpConfig):
        return ServerUnreachable(f"{transport.public_url} cannot be reached: {one_line(error)}")
    if isinstance(error, ValidationError):
        return ServerUnreachable(f"its initialization response is not valid MCP: {one_line(error)}")
    return ServerUnreachable(one_line(error))


def refusal_error(config: ServerConfig, status: int, status_line: str) -> ServerUnreachable:
    if status == 401:
        return ServerUnreachable(login_required(config), "login_required", lasting=True)
    where = config.transport.public_url if isinstance(config.transport, HttpConfig) else config.name
    return ServerUnreachable(f"{where} responds with {status_line}", status=status)


def login_required(config: ServerConfig) -> str:
    return f"it requires a login: run `hutch auth {config.name}`"


def failed_call(config: ServerConfig, tool: str, error: MCPError | ValidationError) -> UpstreamError:
    """Converts the error of a call that failed on an intact connection."""
    if isinstance(error, ValidationError):
        message = f"the result is not valid MCP: {one_line(error)}"
        return UpstreamError(config.name, tool, message, kind="invalid_result")
    if isinstance(error.data, TransportFault):
        return UpstreamError(config.name, tool, error.message, kind=error.data.kind)
    if TOO_LARGE in error.message or SSE_TOO_LARGE in error.message:
        return UpstreamError(config.name, tool, f"{TOO_LARGE} the limit for one message", kind="too_large")
    if error.code == CONNECTION_CLOSED:
        message = f"the server was lost before it answered: {error.message}"
        return UpstreamError(config.name, tool, message, kind="lost")
    status = _http_status(error)
    if status == 401:
        return UpstreamError(config.name, tool, login_required(config), kind="login_required")
    if status is not None and status >= 500:
        return UpstreamError(config.name, tool, error.message, kind="not_connected")
    details = {"code": error.code} if error.data is None else {"code": error.code, "data": error.data}
    return UpstreamError(config.name, tool, error.message, kind="rpc_error", details=details)


def invalid_result(problem: str) -> MCPError:
    """Returns the error for a call whose result is not valid MCP."""
    return MCPError(code=PARSE_ERROR, message=_invalid(problem), data=TransportFault("invalid_result"))


def error_for_result(request_id: int | str, problem: str) -> SessionMessage:
    return _error_response(request_id, _invalid(problem), TransportFault("invalid_result"))


def _invalid(problem: str) -> str:
    return f"the result is not valid MCP: {problem}"


def one_line(error: BaseException) -> str:
    """Returns the message of an error as one line of limited length, which is never empty and has no
    characters that a terminal interprets.
    """
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}"
    elif isinstance(error, OAuthFlowError):
        text = _oauth_message(str(error))
    else:
        text = str(error)
    return printable(" ".join(text.split())[:MAX_ERROR_CHARS]) or type(error).__name__


def _oauth_message(text: str) -> str:
    """Returns the message of an OAuth error without tokens, secrets and state. The SDK's messages contain
    whole responses, and validation errors quote parts of them. Of a response, only the standard fields that
    describe the error are kept.
    """
    for start, message in _OAUTH_SECRETS.items():
        if text.startswith(start):
            return message
    match = _OAUTH_RESPONSE.match(text)
    if match is None:
        return text
    try:
        body = msgspec.json.decode(match["body"])
    except (ValueError, RecursionError):
        body = None
    fields = [body.get(name) for name in ("error", "error_description")] if isinstance(body, dict) else []
    described = ": ".join(field[:200] for field in fields if isinstance(field, str))
    return f"{match['what']}: {described}" if described else match["what"]


def _http_status(error: MCPError) -> int | None:
    data = error.data
    status = data.get("status") if isinstance(data, dict) else None
    return status if isinstance(status, int) else None


# --- error responses in place of messages that cannot be read ---

# The SDK drops messages that it cannot parse, and the call would then wait until its timeout. These functions
# find the id in such a message, so that the call with this id fails immediately and other calls are not
# affected.


def error_for_oversized(head: bytes, tail: bytes, limit: str) -> SessionMessage | None:
    """Builds the error response for an oversized message from the start and the end of the message. Returns
    None if no id is found.
    """
    match = ID_FIRST.match(head) or ID_LAST.search(tail)
    if match is None:
        return None
    message = f"{TOO_LARGE} {limit}"
    return _error_response(msgspec.json.decode(match[1]), message, TransportFault("too_large"))


def error_for_invalid(error: ValidationError) -> SessionMessage | None:
    """Builds the error response for a message that fails the SDK's validation. Returns None if it has no
    usable id.
    """
    for problem in error.errors(include_url=False, include_context=False):
        value = problem["input"]
        if problem["type"] == "json_invalid":
            return _error_for_non_json(value if isinstance(value, bytes) else value.encode(errors="replace"))
        if _is_response(value):
            return _error_response(
                value["id"], "the response is not valid JSON-RPC", TransportFault("invalid_result")
            )
    return None


def _is_response(value: Any) -> bool:
    # Compare types exactly, because bool is a subclass of int but not a valid id.
    return isinstance(value, dict) and type(value.get("id")) in (int, str) and value.get("method") is None


def _error_for_non_json(text: bytes) -> SessionMessage | None:
    first = ID_FIRST.match(text)
    if first is not None:
        match = first if _RESPONSE.match(text, first.end()) else None
    else:
        match = ID_LAST.search(text) if _RESPONSE_FIRST.match(text) else None
    if match is None:
        return None
    return _error_response(
        msgspec.json.decode(match[1]), "the response is not JSON", TransportFault("invalid_result")
    )


def _error_response(request_id: int | str, message: str, fault: TransportFault) -> SessionMessage:
    error = ErrorData(code=PARSE_ERROR, message=message, data=fault)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
