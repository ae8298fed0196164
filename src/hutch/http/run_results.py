"""Results of runs as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.session.files.transfer import encode_files
from hutch.session.json_value import encode_value
from hutch.session.messages import WireError
from hutch.session.run import SUSPENDED, PendingCall, Result


async def result_json(result: Result) -> bytes:
    body: dict[str, Any] = {"ok": result.ok, "run_id": result.run_id}
    if result.error is not None:
        body["error"] = msgspec.to_builtins(WireError.of(result.error))
        if result.error.code == SUSPENDED:
            body["error"]["code"] = SUSPENDED
            body["pending_calls"] = [_pending_call(call) for call in result.pending_calls]
    body |= {
        "logs": result.logs,
        "logs_truncated": result.logs_truncated,
        "duration_ms": result.duration_ms,
        "calls": msgspec.to_builtins(result.calls),
    }
    if result.script is not None:
        script = result.script
        body |= {"exit_code": script.exit_code, "stdout": script.stdout, "stderr": script.stderr}
    if result.warnings:
        body["warnings"] = [*result.warnings]
    json = encode_value(body)
    if result.ok:
        # Insert the encoded result, because encoding a large result again would block the event loop.
        json = json[:-1] + b',"result":' + (result.result_json or b"null") + b"}"
    if result.files:
        json = json[:-1] + b',"files":' + await encode_files(result.files) + b"}"
    return json


def _pending_call(call: PendingCall) -> dict[str, Any]:
    """Returns the public fields of a pending call. Its token is secret."""
    return {
        "call_id": call.call_id,
        "provider": call.provider,
        "tool": call.tool,
        "input": call.input,
        "message": call.message,
    }
