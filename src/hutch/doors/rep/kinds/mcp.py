"""`mcp.call`: a tool of one of the user's MCP servers, by the operator's rules for it."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.doors.rep.kinds.asking import asked
from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.errors import UpstreamError

# What the server or its tool will say again.
_LASTING = frozenset({"unknown_server", "unknown_tool", "invalid_arguments", "login_required", "denied"})


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tool, with what."""

    server: str
    tool: str
    arguments: dict[str, Any] = {}


async def _call(call: Call) -> Any:
    params: Params = call.params
    gateway = (await call.context.app()).gateway
    try:
        with asked(call, gateway) as name:
            return await gateway.call(params.server, params.tool, params.arguments, run=name)
    except UpstreamError as error:
        details = {"server": error.server, "tool": error.tool, "kind": error.kind, "details": error.details}
        message = error.message
        if error.kind in ("unknown_server", "unknown_tool"):
            message = f"{message.rstrip('.')}; `hutch tools list` says which there are."
        raise StepFailed(message, retriable=error.kind not in _LASTING, details=details) from None


CALL = Kind("mcp.call", _call, params=Params)
