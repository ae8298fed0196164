"""Request parsing and replies of the gateway's HTTP API, independent of the HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.errors import UpstreamError
from hutch.http.errors import ERROR_KINDS, ApiError, ErrorKind
from hutch.http.sse import encode_event
from hutch.protocols.toolscript.gateway.approvals import Approval, ApprovalAnswer, ApprovalEvent
from hutch.protocols.toolscript.gateway.catalog import CatalogEntry
from hutch.protocols.toolscript.gateway.gateway import EtaggedText
from hutch.session.json_value import NotJsonSafe, encode_value, kind_of

if TYPE_CHECKING:
    from hutch.protocols.toolscript.gateway.search.index import SearchResult

MAX_SHOWN_ARGUMENTS = 64 * 1024

_JSON = ((b"content-type", b"application/json"),)
_STATUS_BY_KIND = {
    "invalid_arguments": 400,
    "denied": 403,
    "unknown_tool": 404,
    "timeout": 504,
}
# Error kinds with their own codes. Other kinds use the codes and the format that all protocols share.
_GATEWAY_ERRORS = {
    "invalid_request": ErrorKind(400, "invalid_request"),
    "too_large": ErrorKind(413, "invalid_request"),
    "unsupported_media_type": ErrorKind(415, "invalid_request"),
    "denied": ErrorKind(403, "denied"),
    "unknown_approval": ErrorKind(404, "unknown_approval"),
    "decided": ErrorKind(409, "decided"),
    "busy": ErrorKind(503, "busy"),
}


class GatewayReply(NamedTuple):
    """A response that is not bound to an HTTP server."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = _JSON


# --- requests ---


def parse_answer(body: dict[str, Any]) -> ApprovalAnswer:
    """Parses the body of a decision. Raises ApiError."""
    decision, reason, remember = body.get("decision"), body.get("reason"), body.get("remember", False)
    if decision not in ("allow", "deny"):
        got = encode_value(decision).decode()[:80] if "decision" in body else "nothing"
        raise ApiError("invalid_request", f'decision: expected "allow" or "deny", got {got}')
    if reason is not None and not isinstance(reason, str):
        raise ApiError("invalid_request", f"reason: expected a string, got {kind_of(reason)}")
    if not isinstance(remember, bool):
        raise ApiError("invalid_request", f"remember: expected true or false, got {kind_of(remember)}")
    return ApprovalAnswer(decision, reason[:1_000] if reason else None, remember)


# --- replies ---


def json_reply(value: Any, status: int = 200) -> GatewayReply:
    return GatewayReply(status, encode_value(value))


def text_reply(text: EtaggedText, if_none_match: str) -> GatewayReply:
    headers = ((b"etag", text.etag.encode()), (b"cache-control", b"no-cache"))
    if text.etag in if_none_match:
        return GatewayReply(304, headers=headers)
    return GatewayReply(200, text.body, (*headers, (b"content-type", b"application/typescript")))


def _error_reply(status: int, code: str, message: str, **more: Any) -> GatewayReply:
    return json_reply({"error": {"code": code, "message": message, **more}}, status)


def api_error_reply(error: ApiError) -> GatewayReply:
    """Formats the gateway's own errors as the specification requires, and others in the common format."""
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    if error.kind in _GATEWAY_ERRORS:
        kind = _GATEWAY_ERRORS[error.kind]
        reply = _error_reply(kind.status, kind.code, error.message, **error.extra)
    else:
        kind = ERROR_KINDS[error.kind]
        body = {"code": kind.code, "message": error.message}
        reply = json_reply({"success": False, "error": body}, kind.status)
    return reply._replace(headers=(*reply.headers, *headers))


def tool_error_reply(error: UpstreamError) -> GatewayReply:
    body = {
        "code": error.kind,
        "message": error.message,
        "server": error.server,
        "tool": error.tool,
        "details": error.details,
    }
    status = _STATUS_BY_KIND.get(error.kind, 502)
    try:
        return json_reply({"error": body}, status)
    except NotJsonSafe:
        return json_reply({"error": body | {"details": None}}, status)


def encode_tool(entry: CatalogEntry, **more: Any) -> bytes:
    body = {
        "serverName": entry.server,
        "toolName": entry.tool,
        "qualifiedName": entry.qualified,
        "scriptName": f"tools.{entry.namespace}.{entry.member}",
        "description": entry.description,
        "inputSchema": entry.input_schema,
        "outputSchema": entry.output_schema,
        **({"readOnly": True} if entry.reads_only else {}),
        **more,
    }
    try:
        return encode_value(body)
    except NotJsonSafe:
        # Omit schemas that are nested too deeply, so that the other tools can be listed.
        return encode_value(body | {"inputSchema": None, "outputSchema": None})


def encode_search_result(result: SearchResult) -> bytes:
    body = {
        "score": result.score,
        "scoreBreakdown": {
            "semantic": 0,
            "fuzzy": result.name,
            "lexical": result.lexical,
            "combined": result.score,
        },
        "reason": result.reason,
    }
    return b'{"tool":%b,%b' % (
        encode_tool(result.entry, toolId=result.entry.qualified),
        encode_value(body)[1:],
    )


def approval_body(approval: Approval, *, full: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": approval.id,
        "server": approval.server,
        "tool": approval.tool,
        "run": approval.run,
        "askedAt": approval.asked_at,
        "seconds": approval.seconds,
        "arguments": approval.arguments,
    }
    text = encode_value(approval.arguments)
    if len(text) > MAX_SHOWN_ARGUMENTS and not full:
        body["arguments"] = None
        body["argumentsBegin"] = text[:MAX_SHOWN_ARGUMENTS].decode()
        body["argumentsBytes"] = len(text)
    return body


def encode_approval_event(event: ApprovalEvent) -> bytes:
    return encode_event(event.name, encode_value(approval_body(event.approval)))
