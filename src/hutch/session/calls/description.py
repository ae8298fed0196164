"""Describes tool calls for messages, for records, and for the store."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, time

from msgspec import UNSET, Raw, UnsetType

from hutch.errors import Suspend
from hutch.session.extensions.messages import SuspendedCall
from hutch.session.json_value import well_formed
from hutch.session.messages import ToolCall, ToolResult, WireError, encode
from hutch.session.run import PendingCall
from hutch.session.tools.provider import MAX_MESSAGE_CHARS, Provider
from hutch.text import cut

# Limits on the names in a tool call. They bound the memory that a guest with forged calls can use in the
# host.
MAX_CALL_ID_CHARS = 128
MAX_NAME_CHARS = 1_024
MAX_SHOWN_NAME_CHARS = 100
# Maximum number of tools, and of lines of each tool, in a warning about calls that had not ended.
MAX_WARNED_TOOLS = 3
MAX_WARNED_LINES = 5
FORGOTTEN_AWAIT = "Did you forget `await`?"


def shown_name(call: ToolCall) -> str:
    return shown(call.provider_name, call.safe_tool_name)


def shown(provider: str, tool: str) -> str:
    return cut(f"{provider}.{tool}", MAX_SHOWN_NAME_CHARS)


def unended_warning(calls: Sequence[tuple[str, int | None]]) -> str:
    """Returns a warning about calls that had not ended when the code returned. Each call is given by the
    name of its tool and its line, if that is known.
    """
    by_tool: dict[str, list[int | None]] = {}
    for name, line in calls:
        by_tool.setdefault(name, []).append(line)
    parts = [
        f"{count} call{'' if count == 1 else 's'} of {name}{_shown_lines(lines)}"
        for name, lines in by_tool.items()
        if (count := len(lines))
    ]
    if len(parts) > MAX_WARNED_TOOLS:
        parts[MAX_WARNED_TOOLS:] = [f"calls of {len(parts) - MAX_WARNED_TOOLS} more tools"]
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"{listed} had not ended when the code returned, and may not have been made. {FORGOTTEN_AWAIT}"


def _shown_lines(lines: Sequence[int | None]) -> str:
    known = list(dict.fromkeys(str(line) for line in lines if line is not None))
    if not known:
        return ""
    shown = [*known[:MAX_WARNED_LINES], *("…" for _ in known[MAX_WARNED_LINES : MAX_WARNED_LINES + 1])]
    return f" (line{'' if len(known) == 1 else 's'} {', '.join(shown)})"


def line_of(call: ToolCall) -> int | None:
    return call.line if call.line is not UNSET and call.line > 0 else None


def run_call_id(call: ToolCall) -> str:
    """Returns the id of a call in its run. On a connection to a server, the call has another id."""
    return call.call_id if call.run_call_id is UNSET else call.run_call_id


def is_oversized(call: ToolCall) -> bool:
    return (
        len(call.call_id) > MAX_CALL_ID_CHARS
        or (call.run_call_id is not UNSET and len(call.run_call_id) > MAX_CALL_ID_CHARS)
        or len(call.provider_name) + len(call.safe_tool_name) > MAX_NAME_CHARS
    )


def is_idempotent(call: ToolCall, provider: Provider) -> bool:
    tool = provider.tools.get(call.safe_tool_name)
    return tool is not None and tool.idempotent and call.stream is not True


def deferred_call(call: ToolCall, suspend: Suspend, began: float, start_ms: float) -> PendingCall:
    """Describes a call whose result will arrive later. `began` is the start of the call on the monotonic
    clock.
    """
    return PendingCall(
        call_id=call.call_id,
        provider=call.provider_name,
        tool=call.safe_tool_name,
        input_json=bytes(call.input),
        message=well_formed(suspend.message),
        token=suspend.token,
        question=suspend.question,
        started_at=time() - (monotonic() - began),
        start_ms=start_ms,
        line=line_of(call),
    )


def suspended_line(call: ToolCall, suspend: Suspend) -> bytes:
    """Encodes the reply to a server that the result of a call comes later."""
    message = suspend.message
    later: SuspendedCall | UnsetType = SuspendedCall(suspend.token)
    if suspend.token is not None and well_formed(suspend.token) != suspend.token:
        message, later = "token: expected text without half of a surrogate pair", UNSET
    error = WireError(code=suspend.tool_code, message=cut(well_formed(message), MAX_MESSAGE_CHARS))
    return encode(ToolResult(call_id=call.call_id, ok=False, error=error, suspend=later))


def running_call(call: ToolCall, provider: Provider, began: float, start_ms: float) -> PendingCall:
    """Describes a call whose tool is running. `began` is the start of the call on the monotonic clock."""
    return PendingCall(
        call_id=call.call_id,
        provider=call.provider_name,
        tool=call.safe_tool_name,
        input_json=bytes(call.input),
        message=f"{shown_name(call)} is running",
        started_at=time() - (monotonic() - began),
        start_ms=start_ms,
        line=line_of(call),
        in_flight="repeatable" if is_idempotent(call, provider) else "once",
    )


def repeated_call(call: PendingCall) -> ToolCall:
    """Rebuilds the message of a call, so that the call can be made again."""
    return ToolCall(
        call_id=call.call_id,
        provider_name=call.provider,
        safe_tool_name=call.tool,
        input=Raw(call.input_json),
        line=UNSET if call.line is None else call.line,
    )
