"""What the gateway hears and says over HTTP: the shapes of bodies, parameters and answers."""

from __future__ import annotations

import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from hutch.doors.toolscript.approvals import Answer, Approval, Event
from hutch.doors.toolscript.catalog import Entry
from hutch.doors.toolscript.gateway import Text
from hutch.errors import UpstreamError
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value, kind_of

if TYPE_CHECKING:
    from hutch.doors.toolscript.search import Found

MAX_SHOWN_ARGUMENTS = 64 * 1024

_STATUS = {
    "invalid_arguments": 400,
    "denied": 403,
    "unknown_tool": 404,
    "timeout": 504,
}

# --- what is heard ---


class Unfit(Exception):
    """A request that cannot be meant; the message names the field and what was expected."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status

    def response(self, **more: Any) -> Response:
        return fault(self.status, "invalid_request", str(self), **more)


async def read_object(request: Request, most: int) -> dict[str, Any]:
    """The body. Raises Unfit when it is no object, or too large; and ClientDisconnect."""
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > most:
                raise Unfit(f"body: the most is {most} bytes", 413)
            parts.append(part)
    body = b"".join(parts)
    if not body.strip():
        return {}
    try:
        value = decode_value(body)
    except NotJsonSafe as error:
        raise Unfit(f"body: {error}") from None
    if not isinstance(value, dict):
        raise Unfit(f"body: expected an object, got {kind_of(value)}")
    return value


def answer_of(body: dict[str, Any]) -> Answer:
    decision, reason, remember = body.get("decision"), body.get("reason"), body.get("remember", False)
    if decision not in ("allow", "deny"):
        got = encode_value(decision).decode()[:80] if "decision" in body else "nothing"
        raise Unfit(f'decision: expected "allow" or "deny", got {got}')
    if reason is not None and not isinstance(reason, str):
        raise Unfit(f"reason: expected a string, got {kind_of(reason)}")
    if not isinstance(remember, bool):
        raise Unfit(f"remember: expected true or false, got {kind_of(remember)}")
    return Answer(decision, reason[:1_000] if reason else None, remember)


def number(request: Request, name: str, default: float, least: float, most: float) -> float:
    given = request.query_params.get(name)
    if given is None or not given.strip():
        return default
    with contextlib.suppress(ValueError):
        number = float(given)
        if least <= number <= most:
            return number
    raise Unfit(f"{name}: expected a number from {least:g} to {most:g}, got {given[:40]!r}")


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in ("true", "1", "yes")


# --- what is said ---


def json_answer(value: Any, status: int = 200) -> Response:
    return raw_answer(encode_value(value), status)


def raw_answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def text_answer(request: Request, text: Text) -> Response:
    headers = {"ETag": text.etag, "Cache-Control": "no-cache"}
    if text.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(text.body, media_type="application/typescript", headers=headers)


def fault(status: int, code: str, message: str, **more: Any) -> Response:
    return json_answer({"error": {"code": code, "message": message, **more}}, status)


def failed(error: UpstreamError) -> Response:
    told = {
        "code": error.kind,
        "message": error.message,
        "server": error.server,
        "tool": error.tool,
        "details": error.details,
    }
    status = _STATUS.get(error.kind, 502)
    try:
        return json_answer({"error": told}, status)
    except NotJsonSafe:
        return json_answer({"error": told | {"details": None}}, status)


def listing(entry: Entry, **more: Any) -> bytes:
    told = {
        "serverName": entry.server,
        "toolName": entry.tool,
        "qualifiedName": entry.qualified,
        "scriptName": f"tools.{entry.namespace}.{entry.member}",
        "description": entry.description,
        "inputSchema": entry.input_schema,
        "outputSchema": entry.output_schema,
        **more,
    }
    try:
        return encode_value(told)
    except NotJsonSafe:
        # Deeper than anybody looks: all others are still to be listed.
        return encode_value(told | {"inputSchema": None, "outputSchema": None})


def result(found: Found) -> bytes:
    told = {
        "score": found.score,
        "scoreBreakdown": {
            "semantic": 0,
            "fuzzy": found.name,
            "lexical": found.lexical,
            "combined": found.score,
        },
        "reason": found.reason,
    }
    return b'{"tool":%b,%b' % (listing(found.entry, toolId=found.entry.qualified), encode_value(told)[1:])


def shown(approval: Approval, *, whole: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": approval.id,
        "server": approval.server,
        "tool": approval.tool,
        "run": approval.run,
        "askedAt": approval.asked_at,
        "seconds": approval.seconds,
        "arguments": approval.arguments,
    }
    text = encode_value(approval.arguments)
    if len(text) > MAX_SHOWN_ARGUMENTS and not whole:
        told["arguments"] = None
        told["argumentsBegin"] = text[:MAX_SHOWN_ARGUMENTS].decode()
        told["argumentsBytes"] = len(text)
    return told


def sent(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.name.encode(), encode_value(shown(event.approval)))
