"""What a runtime says, read strictly: one JSON-RPC answer a line, and what has to be in those to a poll."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from hutch.doors.rep.codes import BROKEN_TRANSPORT, STEP_FAILED, RpcError, failure

DEEPEST = 300
_SHOWN = 120

Status = Literal["pending", "running", "completed", "failed"]
STATUSES = ("pending", "running", "completed", "failed")
TERMINAL = ("completed", "failed")


class Mismatch(Exception):
    """What came is not what the protocol has there; the text says what was expected."""


class Answer(NamedTuple):
    """One answer: a result, or an error."""

    id: int | float | str | None
    result: Any = None
    error: RpcError | None = None


def read(line: bytes) -> Answer:
    """The answer on a line. Raises Mismatch."""
    message = _parsed(line)
    if not isinstance(message, dict):
        raise Mismatch(f"expected a JSON object, got {shown(line)}")
    if message.get("jsonrpc") != "2.0":
        raise Mismatch(f'jsonrpc: expected "2.0", got {shown(line)}')
    if "method" in message:
        raise Mismatch(f"expected an answer, got a request: {shown(line)}")
    if ("result" in message) == ("error" in message):
        raise Mismatch(f"expected either a result or an error, got {shown(line)}")
    if "id" not in message:
        raise Mismatch(f"id: expected that of the request, got none: {shown(line)}")
    id = message["id"]
    if isinstance(id, bool) or not isinstance(id, int | float | str | None):
        raise Mismatch(f"id: expected that of the request, got {shown(line)}")
    if "result" in message:
        return Answer(id, result=message["result"])
    return Answer(id, error=_error(message["error"], line))


def _parsed(line: bytes) -> Any:
    try:
        message = json.loads(line.decode(), parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:_SHOWN]
        raise Mismatch(f"expected one JSON object on the line ({what}), got {shown(line)}") from None
    if _too_deep(line, message):
        raise Mismatch(f"expected at most {DEEPEST} levels, got {shown(line)}")
    return message


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _too_deep(line: bytes, message: Any) -> bool:
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    level = [message]
    for _ in range(DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _error(error: Any, line: bytes) -> RpcError:
    if not isinstance(error, dict) or not _is_integer(error.get("code")):
        raise Mismatch(f"error: expected an object with an integer as code, got {shown(line)}")
    message = error.get("message")
    told = message if isinstance(message, str) else "The runtime does not say what is wrong."
    return RpcError(error["code"], told, error.get("data"))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(line: bytes) -> str:
    """The beginning of a line, harmless to a terminal."""
    text = line[: _SHOWN * 4].decode(errors="replace")
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return f"'{text[:_SHOWN]}…'" if len(text) > _SHOWN or len(line) > _SHOWN * 4 else f"'{text}'"


class Poll(NamedTuple):
    """How a run is."""

    status: Status
    events: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL


def poll(result: Any) -> Poll:
    """The answer to `Runtime.Poll` (section 5.3). What is no event is left out. Raises Mismatch."""
    if not isinstance(result, dict):
        raise Mismatch("Poll: expected an object with a status")
    status = result.get("status")
    if status not in STATUSES:
        raise Mismatch(f"Poll: status: expected {', '.join(STATUSES)}, got {_told(status)}")
    events = result.get("events")
    if events is not None and not isinstance(events, list):
        raise Mismatch(f"Poll: events: expected a list, got {_told(events)}")
    summary = result.get("summary")
    if summary is not None and not isinstance(summary, dict):
        raise Mismatch(f"Poll: summary: expected an object, got {_told(summary)}")
    real = [each for each in events or () if isinstance(each, dict) and isinstance(each.get("type"), str)]
    return Poll(cast(Status, status), real, summary or {})


def run_id(result: Any) -> str:
    """The answer to `Runtime.StartRun`. Raises Mismatch."""
    given = result.get("run_id") if isinstance(result, dict) else None
    if not isinstance(given, str) or not given:
        raise Mismatch(f"StartRun: run_id: expected a text, got {_told(given)}")
    return given


def _told(value: Any) -> str:
    return shown(json.dumps(value)[: 2 * _SHOWN].encode())


def why_failed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Why a run failed, as a REP error, however little the runtime says of it."""
    error = summary.get("error")
    if isinstance(error, str) and error:
        return failure(STEP_FAILED, error)
    if not isinstance(error, Mapping):
        return failure(STEP_FAILED, "The run failed; the runtime does not say why.")
    code, message = error.get("code"), error.get("message")
    told = failure(
        code if isinstance(code, int) and not isinstance(code, bool) else STEP_FAILED,
        message if isinstance(message, str) and message else "The run failed; the runtime does not say why.",
    )
    data = error.get("data")
    return {**told, "data": {**told["data"], **data}} if isinstance(data, Mapping) else told


def why_refused(method: str, error: RpcError) -> dict[str, Any]:
    """An error that a runtime answered with, as a REP error. Codes of JSON-RPC are none of REP's."""
    data = dict(error.data) if isinstance(error.data, Mapping) else {}
    if 1000 <= error.code < 4000:
        told = failure(error.code, error.message)
        if error.data is not None and not data:
            data = {"details": error.data}
        return {**told, "data": {**told["data"], **data}}
    return failure(
        BROKEN_TRANSPORT,
        f"The runtime does not serve {method}: {error.message}",
        details={"code": error.code, "message": error.message, "data": error.data},
        cause="ProtocolMismatch",
    )
