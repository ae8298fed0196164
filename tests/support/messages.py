"""Execbox messages, written from the specification."""

from __future__ import annotations

from typing import Any

OPTIONS = {"timeoutMs": 20_000, "memoryLimitBytes": 67_108_864, "maxLogLines": 100, "maxLogChars": 64_000}


def execute(
    id: str, code: str, *, tools: tuple[str, ...] = (), namespace: str = "tools", **options: Any
) -> dict[str, Any]:
    """Returns an `execute` message with tools of these names."""
    manifest = {
        "name": namespace,
        "tools": {name: {"safeName": name, "originalName": name, "description": "A tool"} for name in tools},
        "types": f"declare namespace {namespace} {{ ... }}",
    }
    return {
        "type": "execute",
        "id": id,
        "code": code,
        "options": OPTIONS | options,
        "providers": [manifest] if tools else [],
    }


def tool_result(call: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"type": "tool_result", "callId": call["callId"], "ok": True, "result": result}


def tool_failure(call: dict[str, Any], code: str, message: str) -> dict[str, Any]:
    error = {"code": code, "message": message}
    return {"type": "tool_result", "callId": call["callId"], "ok": False, "error": error}


# A runner must not answer these messages, and they must not affect later messages.
MALFORMED = [
    "",
    "garbage",
    "{",
    "null",
    "[]",
    '"execute"',
    "{}",
    '{"type":"launch","id":"x"}',
    '{"type":"execute","id":"x","code":"1"}',
    '{"type":"execute","id":7,"code":"1","options":{},"providers":[]}',
    '{"type":"execute","id":"x","code":"1","options":{"timeoutMs":"soon"},"providers":[]}',
    '{"type":"cancel"}',
    '{"type":"cancel","id":"unknown"}',
    '{"type":"tool_result","callId":"unknown","ok":true,"result":1}',
    '{"type":"tool_result","callId":"unknown","ok":true}',
    '{"type":"done","id":"x","ok":true,"durationMs":1,"logs":[]}',
    '{"type":"tool_result","callId":"unknown","ok":true,"result":' + "[" * 10_000 + "]" * 10_000 + "}",
]

# The specification's minimal transcript, verbatim.
TRANSCRIPT = [
    (
        r'{"type":"execute","id":"exec-1","code":"await tools.echo({\"ok\":true})","options":{'
        r'"timeoutMs":1000,"memoryLimitBytes":67108864,"maxLogLines":100,"maxLogChars":64000},"providers":['
        r'{"name":"tools","tools":{"echo":{"safeName":"echo","originalName":"echo",'
        r'"description":"Echo input"}},'
        r'"types":"declare namespace tools { ... }"}]}'
    ),
    '{"type":"started","id":"exec-1"}',
    '{"type":"tool_call","callId":"call-1","providerName":"tools","safeToolName":"echo","input":{"ok":true}}',
    '{"type":"tool_result","callId":"call-1","ok":true,"result":{"ok":true}}',
    '{"type":"done","id":"exec-1","ok":true,"durationMs":3,"logs":[],"result":{"ok":true}}',
]
