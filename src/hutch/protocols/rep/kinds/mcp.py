"""`mcp.call`: calls a tool of one of the user's MCP servers, with the operator's approval if required."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.errors import UpstreamError
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.protocols.rep.kinds.tool_approval import approve_through_step

# Errors that a retry cannot fix.
_PERMANENT_ERRORS = frozenset(
    {"unknown_server", "unknown_tool", "invalid_arguments", "login_required", "denied"}
)


class McpCallParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: str
    tool: str
    arguments: dict[str, Any] = {}


async def _call(call: Call) -> Any:
    params: McpCallParams = call.params
    gateway = (await call.context.step_services()).gateway()
    try:
        with approve_through_step(call, gateway) as run_id:
            return await gateway.call(params.server, params.tool, params.arguments, run=run_id)
    except UpstreamError as error:
        details = {"server": error.server, "tool": error.tool, "kind": error.kind, "details": error.details}
        message = error.message
        if error.kind in ("unknown_server", "unknown_tool"):
            message = f"{message.rstrip('.')}; `hutch tools list` lists all tools."
        raise StepFailed(message, retriable=error.kind not in _PERMANENT_ERRORS, details=details) from None


CALL = Kind("mcp.call", _call, params=McpCallParams)
