"""JSON-RPC 2.0 over lines: parses requests strictly, dispatches them and writes responses.

Imports only modules that load quickly, because this module is loaded before the first response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hutch.strict_json import MAX_VALUES, find_excess, parse_json

# Error codes of REP, section 6.
UNSUPPORTED_VERSION = 1001
UNSUPPORTED_KIND = 1002
INVALID_IR = 1003
STEP_FAILED = 2001
BROKEN_TRANSPORT = 3001
PANIC = 3002

# Error codes of JSON-RPC 2.0, section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

TIMEOUT = "Timeout"
CANCELLED = "Cancelled"
"""Value of `data.cause` in the errors of cancelled runs and steps."""


def cancelled_error(details: Any = None) -> dict[str, Any]:
    return rep_error(STEP_FAILED, "The run was cancelled.", details=details, cause=CANCELLED)


MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 200
_MAX_SHOWN = 100

RpcId = str | int | float | None
RpcMethod = Callable[[dict[str, Any]], dict[str, Any]]


# --- errors ---


class RpcError(Exception):
    """A JSON-RPC error response."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def wire(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


def rep_error(
    code: int,
    message: str,
    *,
    step_id: str | None = None,
    attempt: int = 0,
    retriable: bool = False,
    details: Any = None,
    cause: str | None = None,
) -> dict[str, Any]:
    """Builds a REP error object (section 6)."""
    data: dict[str, Any] = {
        "step_id": step_id,
        "attempt": attempt,
        "retriable": retriable,
        "details": {} if details is None else details,
    }
    if cause is not None:
        data["cause"] = cause
    return {"code": code, "message": message, "data": data}


# --- requests ---


class RpcRequest(NamedTuple):
    id: RpcId
    method: str
    params: dict[str, Any]
    is_notification: bool = False


class InvalidRpcRequest(Exception):
    """The line is not a valid request. `response` is the error response to send."""

    def __init__(self, response: bytes) -> None:
        super().__init__(response)
        self.response = response


def parse_request(line: bytes, limit: int = MAX_LINE_BYTES) -> RpcRequest:
    """Parses and checks a request. Raises InvalidRpcRequest."""
    if len(line) > limit:
        raise _invalid_request(
            INVALID_REQUEST, f"the line is longer than {limit} bytes; send a smaller message"
        )
    message = _parse_json(line)
    if isinstance(message, list):
        raise _invalid_request(INVALID_REQUEST, "expected one request per line; batches are not supported")
    if not isinstance(message, dict):
        raise _invalid_request(INVALID_REQUEST, "expected a JSON object with jsonrpc, id, method and params")
    return _validate_request(message)


def _validate_request(message: dict[str, Any]) -> RpcRequest:
    id = message.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | float | None):
        raise _invalid_request(INVALID_REQUEST, "id: expected a number or a string")
    if message.get("jsonrpc") != "2.0":
        raise _invalid_request(INVALID_REQUEST, 'jsonrpc: expected "2.0"', id)
    method = message.get("method")
    if not isinstance(method, str):
        raise _invalid_request(INVALID_REQUEST, "method: expected a string such as Runtime.Poll", id)
    params = message.get("params", {})
    if isinstance(params, list):
        raise _invalid_request(INVALID_PARAMS, "params: expected an object with named parameters", id)
    if not isinstance(params, dict):
        raise _invalid_request(INVALID_REQUEST, "params: expected an object", id)
    return RpcRequest(id, method, params, is_notification="id" not in message)


def _parse_json(line: bytes) -> Any:
    excess = find_excess(line, MAX_DEPTH, MAX_VALUES)
    if excess == "depth":
        raise _invalid_request(PARSE_ERROR, f"the message nests more than {MAX_DEPTH} levels")
    if excess == "values":
        raise _invalid_request(PARSE_ERROR, f"the message has more than {MAX_VALUES} values")
    try:
        return parse_json(line)
    except UnicodeDecodeError as error:
        raise _invalid_request(PARSE_ERROR, f"expected UTF-8, but byte {error.start} is not valid") from None
    except json.JSONDecodeError as error:
        message = f"expected one JSON object on the line: {error.msg} (at character {error.pos})"
        raise _invalid_request(PARSE_ERROR, message) from None
    except ValueError as error:
        raise _invalid_request(PARSE_ERROR, f"expected JSON: {str(error)[:_MAX_SHOWN]}") from None
    except RecursionError:
        raise _invalid_request(PARSE_ERROR, "the message nests too deeply") from None


def _invalid_request(code: int, message: str, id: RpcId = None) -> InvalidRpcRequest:
    return InvalidRpcRequest(error_response(id, RpcError(code, message)))


def handle_request(request: RpcRequest, methods: Mapping[str, RpcMethod]) -> bytes:
    """Calls the method of a request and returns the encoded response.

    Exceptions other than RpcError are logged and answered as a runtime failure.
    """
    method = methods.get(request.method)
    try:
        if method is None:
            known = ", ".join(methods)
            raise RpcError(
                METHOD_NOT_FOUND, f"unknown method {request.method[:_MAX_SHOWN]!r}; expected one of {known}"
            )
        return success_response(request.id, method(request.params))
    except RpcError as error:
        return error_response(request.id, error)
    except Exception as error:
        import logging

        logging.getLogger("hutch.rep").exception("%s failed", request.method)
        wire = rep_error(PANIC, f"The runtime failed: {type(error).__name__}", cause=type(error).__name__)
        return error_response(request.id, RpcError(wire["code"], wire["message"], wire["data"]))


# --- responses ---


def success_response(id: RpcId, result: dict[str, Any]) -> bytes:
    return _encode_line({"jsonrpc": "2.0", "id": id, "result": result})


def error_response(id: RpcId, error: RpcError) -> bytes:
    return _encode_line({"jsonrpc": "2.0", "id": id, "error": error.wire})


def _encode_line(message: dict[str, Any]) -> bytes:
    """Encodes a message as ASCII, so that it is always one line and valid UTF-8."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
