"""JSON-RPC client of one runtime process: matches responses to requests and decodes them strictly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec

from hutch.protocols.rep.jsonrpc import (
    BROKEN_TRANSPORT,
    STEP_FAILED,
    TIMEOUT,
    RpcError,
    rep_error,
)
from hutch.protocols.rep.orchestrator.transport import RuntimeTransport
from hutch.strict_json import MAX_VALUES, find_excess, parse_json
from hutch.text import printable

MAX_RESPONSE_DEPTH = 300
_MAX_PREVIEW = 120

RunStatus = Literal["pending", "running", "completed", "failed"]
STATUSES = ("pending", "running", "completed", "failed")
TERMINAL = ("completed", "failed")

PROTOCOL_MISMATCH = "ProtocolMismatch"
ENDED = "Ended"
CANNOT_START = "CannotStart"


class RuntimeTransportError(Exception):
    """The connection to the runtime failed and cannot be used again.

    `cause` is Timeout, ProtocolMismatch, Ended or CannotStart.
    """

    def __init__(self, cause: str, message: str, stderr_tail: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.stderr_tail = stderr_tail

    @property
    def wire(self) -> dict[str, Any]:
        """REP error object."""
        details = {"stderr": self.stderr_tail} if self.stderr_tail else None
        return rep_error(BROKEN_TRANSPORT, self.message, details=details, cause=self.cause)


class ProtocolMismatch(Exception):
    """The message violates the protocol. The text names the expected content."""


class RuntimeClient:
    """Client of one runtime. After the first protocol violation, all pending and later requests fail."""

    def __init__(self, transport: RuntimeTransport) -> None:
        self._transport = transport
        self._last_id = 0
        self._pending: dict[int | float | str | None, asyncio.Future[Any]] = {}
        self._error: RuntimeTransportError | None = None
        transport.on_line = self._receive
        transport.on_end = self._on_exit

    @property
    def stderr_tail(self) -> str:
        """Last bytes that the runtime wrote to stderr."""
        return self._transport.stderr_tail

    async def call(self, method: str, params: dict[str, Any], *, timeout: float | None = None) -> Any:
        """Sends a request and returns the result. Raises RpcError and RuntimeTransportError."""
        answer = self.send(method, params)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            message = f"The runtime did not answer {method} within {timeout:g} s."
            raise RuntimeTransportError(TIMEOUT, message, self.stderr_tail) from None

    def send(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        """Sends a request and returns a future for its result."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Mark the exception as retrieved, because the caller may drop the future.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._error is not None:
            answer.set_exception(self._error)
            return answer
        self._last_id += 1
        self._pending[self._last_id] = answer
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        # Encode as ASCII, so that the request is always one line and valid UTF-8.
        self._transport.send(json.dumps(request, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        return answer

    async def close(self, *, at_once: bool = False) -> None:
        """Ends the runtime process and every process that it started."""
        self._fail(RuntimeTransportError(ENDED, "The runtime was ended."))
        await self._transport.close(at_once=at_once)

    def _receive(self, line: bytes) -> None:
        if self._error is not None:
            return
        try:
            response = parse_response(line)
            answer = self._take_pending(response.id, has_failed=response.error is not None)
        except ProtocolMismatch as mismatch:
            advice = "Its stdout must contain only responses; write logs to stderr."
            message = f"The runtime violated the protocol: {mismatch}. {advice}"
            self._fail(RuntimeTransportError(PROTOCOL_MISMATCH, message, self.stderr_tail))
            return
        if answer.done():
            return
        if response.error is not None:
            answer.set_exception(response.error)
        else:
            answer.set_result(response.result)

    def _take_pending(self, id: int | float | str | None, *, has_failed: bool) -> asyncio.Future[Any]:
        """Removes and returns the future of the request with this id. Raises ProtocolMismatch."""
        if id is None and has_failed and self._pending:
            # A null id means that the runtime could not read the request (JSON-RPC, section 5). Requests are
            # sent one at a time, so the response belongs to the oldest pending request.
            id = next(iter(self._pending))
        answer = self._pending.pop(id, None)
        if answer is None:
            expected = (
                f"expected id {', '.join(map(str, self._pending))}" if self._pending else "expected nothing"
            )
            raise ProtocolMismatch(f"{expected}, got an answer to {json.dumps(id)[:40]}")
        return answer

    def _on_exit(self, how: str) -> None:
        self._fail(RuntimeTransportError(ENDED, f"The runtime has ended: {how}.", self.stderr_tail))

    def _fail(self, error: RuntimeTransportError) -> None:
        if self._error is None:
            self._error = error
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(error)
            self._pending.clear()


# --- responses ---


class RpcResponse(NamedTuple):
    id: int | float | str | None
    result: Any = None
    error: RpcError | None = None


def parse_response(line: bytes) -> RpcResponse:
    """Parses and checks a response. Raises ProtocolMismatch."""
    message = _parse_message(line)
    if not isinstance(message, dict):
        raise ProtocolMismatch(f"expected a JSON object, got {_preview(line)}")
    if message.get("jsonrpc") != "2.0":
        raise ProtocolMismatch(f'jsonrpc: expected "2.0", got {_preview(line)}')
    if "method" in message:
        raise ProtocolMismatch(f"expected an answer, got a request: {_preview(line)}")
    if ("result" in message) == ("error" in message):
        raise ProtocolMismatch(f"expected either a result or an error, got {_preview(line)}")
    if "id" not in message:
        raise ProtocolMismatch(f"id: expected the id of the request, got none: {_preview(line)}")
    id = message["id"]
    if isinstance(id, bool) or not isinstance(id, int | float | str | None):
        raise ProtocolMismatch(f"id: expected the id of the request, got {_preview(line)}")
    if "result" in message:
        return RpcResponse(id, result=message["result"])
    return RpcResponse(id, error=_parse_error(message["error"], line))


def _parse_message(line: bytes) -> Any:
    excess = find_excess(line, MAX_RESPONSE_DEPTH, MAX_VALUES)
    if excess is not None:
        limit = f"{MAX_RESPONSE_DEPTH} levels" if excess == "depth" else f"{MAX_VALUES} values"
        raise ProtocolMismatch(f"expected at most {limit}, got {_preview(line)}")
    try:
        return _decode(line)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:_MAX_PREVIEW]
        raise ProtocolMismatch(
            f"expected one JSON object on the line ({what}), got {_preview(line)}"
        ) from None


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        # Parse again with `parse_json`. It accepts lone surrogates, which msgspec refuses, and describes
        # other errors better.
        return parse_json(line)


def _parse_error(error: Any, line: bytes) -> RpcError:
    if not isinstance(error, dict) or not _is_integer(error.get("code")):
        raise ProtocolMismatch(f"error: expected an object with an integer as code, got {_preview(line)}")
    message = error.get("message")
    text = message if isinstance(message, str) else "The runtime gives no error message."
    return RpcError(error["code"], text, error.get("data"))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- results ---


class PollResult(NamedTuple):
    """Decoded answer to `Runtime.Poll`."""

    status: RunStatus
    events: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL


def parse_poll(result: Any) -> PollResult:
    """Decodes the answer to `Runtime.Poll` (section 5.3). Malformed events are skipped.

    Raises ProtocolMismatch.
    """
    if not isinstance(result, dict):
        raise ProtocolMismatch("Poll: expected an object with a status")
    status = result.get("status")
    if status not in STATUSES:
        raise ProtocolMismatch(f"Poll: status: expected {', '.join(STATUSES)}, got {_preview_value(status)}")
    events = result.get("events")
    if events is not None and not isinstance(events, list):
        raise ProtocolMismatch(f"Poll: events: expected a list, got {_preview_value(events)}")
    summary = result.get("summary")
    if summary is not None and not isinstance(summary, dict):
        raise ProtocolMismatch(f"Poll: summary: expected an object, got {_preview_value(summary)}")
    valid = [
        event for event in events or () if isinstance(event, dict) and isinstance(event.get("type"), str)
    ]
    return PollResult(cast(RunStatus, status), valid, summary or {})


def parse_run_id(result: Any) -> str:
    """Decodes the answer to `Runtime.StartRun`. Raises ProtocolMismatch."""
    run_id = result.get("run_id") if isinstance(result, dict) else None
    if not isinstance(run_id, str) or not run_id:
        raise ProtocolMismatch(f"StartRun: run_id: expected a text, got {_preview_value(run_id)}")
    return run_id


def _preview(line: bytes) -> str:
    """Returns the beginning of a line in quotes, without control characters."""
    text = line[: _MAX_PREVIEW * 4].decode(errors="replace")
    text = printable(text, replacement="\N{REPLACEMENT CHARACTER}")
    return (
        f"'{text[:_MAX_PREVIEW]}…'"
        if len(text) > _MAX_PREVIEW or len(line) > _MAX_PREVIEW * 4
        else f"'{text}'"
    )


def _preview_value(value: Any) -> str:
    return _preview(json.dumps(value)[: 2 * _MAX_PREVIEW].encode())


# --- errors ---


def run_failure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the summary of a failed run to a REP error. Missing fields get defaults."""
    error = summary.get("error")
    if isinstance(error, str) and error:
        return rep_error(STEP_FAILED, error)
    if not isinstance(error, Mapping):
        return rep_error(STEP_FAILED, "The run failed; the runtime does not say why.")
    code, message = error.get("code"), error.get("message")
    converted = rep_error(
        code if isinstance(code, int) and not isinstance(code, bool) else STEP_FAILED,
        message if isinstance(message, str) and message else "The run failed; the runtime does not say why.",
    )
    data = error.get("data")
    return {**converted, "data": {**converted["data"], **data}} if isinstance(data, Mapping) else converted


def call_failure(method: str, error: RpcError) -> dict[str, Any]:
    """Converts an error response to a REP error. Error codes that JSON-RPC defines become
    BROKEN_TRANSPORT.
    """
    data = dict(error.data) if isinstance(error.data, Mapping) else {}
    if 1000 <= error.code < 4000:
        converted = rep_error(error.code, error.message)
        if error.data is not None and not data:
            data = {"details": error.data}
        return {**converted, "data": {**converted["data"], **data}}
    return rep_error(
        BROKEN_TRANSPORT,
        f"The runtime does not serve {method}: {error.message}",
        details={"code": error.code, "message": error.message, "data": error.data},
        cause="ProtocolMismatch",
    )
