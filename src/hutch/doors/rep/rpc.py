"""JSON-RPC 2.0 on lines: requests read strictly, answers written, lines that are too long left out.

Of what Python has, only `json` is imported: it is needed before the first answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hutch.doors.rep.codes import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PANIC,
    PARSE_ERROR,
    RpcError,
    failure,
)

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 200
_SHOWN = 100

Id = str | int | float | None
Method = Callable[[dict[str, Any]], dict[str, Any]]


class Request(NamedTuple):
    """A request that wants an answer, or, as a notification, none."""

    id: Id
    method: str
    params: dict[str, Any]
    is_notification: bool = False


class Refused(Exception):
    """What came is no request; `answer` says so."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class Lines:
    """Cuts a byte stream into lines; of one that is too long it gives the beginning, and no more is kept."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of a line that is not complete yet; at most one more than the limit."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, each of at most one byte more than the limit."""
        *lines, rest = data.split(b"\n")
        complete = []
        for line in lines:
            self._keep(line)
            complete.append(b"".join(self._parts))
            self._parts.clear()
            self._held = 0
        self._keep(rest)
        return complete

    def _keep(self, part: bytes) -> None:
        part = part[: self._limit + 1 - self._held]
        if part:
            self._parts.append(part)
            self._held += len(part)


def read(line: bytes, limit: int = MAX_LINE_BYTES) -> Request:
    """The request on a line. Raises Refused."""
    if len(line) > limit:
        raise _refused(INVALID_REQUEST, f"the line is longer than {limit} bytes; send a smaller message")
    message = _parsed(line)
    if isinstance(message, list):
        raise _refused(INVALID_REQUEST, "expected one request a line; batches are not served")
    if not isinstance(message, dict):
        raise _refused(INVALID_REQUEST, "expected a JSON object with jsonrpc, id, method and params")
    return _request(message)


def _request(message: dict[str, Any]) -> Request:
    id = message.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | float | None):
        raise _refused(INVALID_REQUEST, "id: expected a number or a string")
    if message.get("jsonrpc") != "2.0":
        raise _refused(INVALID_REQUEST, 'jsonrpc: expected "2.0"', id)
    method = message.get("method")
    if not isinstance(method, str):
        raise _refused(INVALID_REQUEST, "method: expected a string such as Runtime.Poll", id)
    params = message.get("params", {})
    if isinstance(params, list):
        raise _refused(INVALID_PARAMS, "params: expected an object; parameters have names here", id)
    if not isinstance(params, dict):
        raise _refused(INVALID_REQUEST, "params: expected an object", id)
    return Request(id, method, params, is_notification="id" not in message)


def _parsed(line: bytes) -> Any:
    try:
        message = json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise _refused(PARSE_ERROR, f"expected UTF-8, but byte {error.start} is none of it") from None
    except json.JSONDecodeError as error:
        what = f"expected one JSON object on the line: {error.msg} (at character {error.pos})"
        raise _refused(PARSE_ERROR, what) from None
    except ValueError as error:
        raise _refused(PARSE_ERROR, f"expected JSON: {str(error)[:_SHOWN]}") from None
    except RecursionError:
        raise _refused(PARSE_ERROR, "the message nests too deeply") from None
    if _too_deep(line, message):
        raise _refused(PARSE_ERROR, f"the message nests more than {MAX_DEPTH} levels")
    return message


def _too_deep(line: bytes, message: Any) -> bool:
    """What we were given has to be walked and written again, also on a stack that is half full already."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    level = [message]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refused(code: int, message: str, id: Id = None) -> Refused:
    return Refused(failed(id, RpcError(code, message)))


def succeeded(id: Id, result: dict[str, Any]) -> bytes:
    return _line({"jsonrpc": "2.0", "id": id, "result": result})


def failed(id: Id, error: RpcError) -> bytes:
    return _line({"jsonrpc": "2.0", "id": id, "error": error.wire})


def _line(message: dict[str, Any]) -> bytes:
    """ASCII: whatever there is in a text, it stays one line, and valid UTF-8."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def answer(request: Request, methods: Mapping[str, Method]) -> bytes:
    """What a request gets. A method raises RpcError; whatever else it raises is a fault of ours, and said."""
    method = methods.get(request.method)
    try:
        if method is None:
            known = ", ".join(methods)
            raise RpcError(
                METHOD_NOT_FOUND, f"there is no method {request.method[:_SHOWN]!r}; there is {known}"
            )
        return succeeded(request.id, method(request.params))
    except RpcError as error:
        return failed(request.id, error)
    except Exception as error:
        import logging

        logging.getLogger("hutch.rep").exception("%s failed", request.method)
        wire = failure(PANIC, f"The runtime failed: {type(error).__name__}", cause=type(error).__name__)
        return failed(request.id, RpcError(wire["code"], wire["message"], wire["data"]))
