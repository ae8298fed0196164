"""OpenAPI description of the gateway to MCP servers, and of approvals."""

from __future__ import annotations

from collections.abc import Sequence

from hutch.http.errors import ERROR_KINDS
from hutch.http.openapi import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    TIME,
    ApiPart,
    Json,
    OperationBuilder,
    array_of,
    failure,
    header,
    object_of,
    path_param,
    query,
    ref,
    response,
    up_to,
)
from hutch.protocols.toolscript.gateway.endpoints import MAX_RESULTS
from hutch.protocols.toolscript.gateway.gateway import SEARCH_LIMIT, SEARCH_THRESHOLD

_OR_NULL = ["string", "null"]
_OBJECT: Json = {"type": "object"}
_SCHEMA: Json = {"type": ["object", "boolean", "null"], "description": "A JSON Schema"}
_ALWAYS = ("UNAUTHORIZED", "FORBIDDEN", "INTERNAL_ERROR", "UNAVAILABLE")

_DESCRIPTION = """\
The tools of all MCP servers that the operator has configured: as a list, as a TypeScript module, by search,
and to call. Every path is also served below `/api`. Calls that wait for an approval are decided by the
operator."""


def describe() -> ApiPart:
    paths = {
        "/servers": {"get": _operation("Lists the MCP servers", array_of("McpServer"))},
        "/status": {
            "get": _operation("Shows the state of the gateway and its servers", ref("GatewayStatus"))
        },
        "/tools": {"get": _tools()},
        "/tools/{name}": {"post": _call()},
        "/search": {"get": _search()},
        "/search/stats": {"get": _operation("Shows the state of the search index", ref("SearchStats"))},
        "/runtime/tools.ts": {"get": _module("Returns the TypeScript module of the tools")},
        "/runtime/tools.d.ts": {"get": _module("Returns the type declarations of the tools")},
        "/approvals": {"get": _approvals()},
        "/approvals/events": {"get": _approval_events()},
        "/approvals/{id}": {"get": _approval(), "post": _decide()},
    }
    return ApiPart("Gateway (Toolscript)", _DESCRIPTION, paths, _schemas())


# --- operations ---

_operation = OperationBuilder(ERROR_KINDS, _ALWAYS, failure)
_OPERATOR: Json = {"security": [{"operator_key": []}]}
_FILTER = query("filter", {**TEXT, "description": "Names of servers or tools, separated by commas"})
_APPROVAL_ID = path_param("id", TEXT)


def _own_failure(description: str, codes: Sequence[str]) -> Json:
    return response(description, _gateway_failure(codes))


def _gateway_failure(codes: Sequence[str]) -> Json:
    error = object_of(
        {"code": {"enum": sorted(codes)}, "message": TEXT},
        {"server": TEXT, "tool": {"type": _OR_NULL}, "details": {"description": "What the server sent"}},
    )
    return object_of({"error": error})


def _tools() -> Json:
    return _operation("Lists the tools", array_of("GatewayTool"), parameters=[_FILTER])


def _search() -> Json:
    operation = _operation(
        "Searches tools, best match first",
        array_of("ToolMatch"),
        parameters=[
            query("q", TEXT, required=True),
            query("limit", {**up_to(MAX_RESULTS), "default": SEARCH_LIMIT}),
            query("threshold", {"type": "number", "minimum": 0, "maximum": 1, "default": SEARCH_THRESHOLD}),
        ],
    )
    operation["responses"]["400"] = _own_failure("Bad Request", ["invalid_request"])
    return operation


def _module(summary: str) -> Json:
    etag = header("If-None-Match", TEXT, "The ETag of an earlier response")
    operation = _operation(summary, TEXT, parameters=[_FILTER, query("compact", FLAG), etag])
    operation["responses"]["200"]["content"] = {"application/typescript": {"schema": TEXT}}
    operation["responses"]["304"] = {"description": "Not changed"}
    return operation


def _call() -> Json:
    name = path_param("name", {**TEXT, "description": "`server__tool`", "examples": ["files__read_file"]})
    operation = _operation(
        "Calls a tool", {"description": "What the tool returned"}, body="ToolArguments", parameters=[name]
    )
    operation["requestBody"]["required"] = False
    operation["requestBody"]["content"]["application/json"]["example"] = {"path": "README.md"}
    responses = operation["responses"]
    responses["400"] = _own_failure("Bad Request", ["invalid_request", "invalid_arguments"])
    responses["403"] = response(
        "Forbidden", {"anyOf": [failure(["FORBIDDEN"]), _gateway_failure(["denied"])]}
    )
    responses["404"] = _own_failure("Not Found", ["unknown_tool"])
    for status in ("413", "415"):
        responses[status] = _own_failure(responses[status]["description"], ["invalid_request"])
    codes = ["unknown_server", "not_connected", "login_required", "lost", "tool_error", "rpc_error"]
    responses["502"] = _own_failure("The server or its tool failed", [*codes, "too_large", "invalid_result"])
    responses["504"] = _own_failure("The tool took too long", ["timeout"])
    return operation


def _approvals() -> Json:
    return _OPERATOR | _operation("Lists the calls that wait for an approval", array_of("WaitingCall"))


def _approval_events() -> Json:
    operation = _operation(
        "Streams waiting calls: `asked`, then `allowed`, `denied`, `expired` or `withdrawn`", TEXT
    )
    operation["responses"]["200"]["content"] = {"text/event-stream": {"schema": TEXT}}
    return _OPERATOR | operation


def _approval() -> Json:
    operation = _operation("Shows a waiting call", ref("WaitingCall"), parameters=[_APPROVAL_ID])
    return _OPERATOR | _with_approval_errors(operation)


def _decide() -> Json:
    operation = _operation(
        "Allows or denies a waiting call",
        object_of({"id": TEXT, "decision": {"enum": ["allow", "deny"]}}),
        body="Decision",
        example={"decision": "allow"},
        parameters=[_APPROVAL_ID],
    )
    for status in ("400", "413", "415"):
        described = operation["responses"][status]
        operation["responses"][status] = _own_failure(described["description"], ["invalid_request"])
    return _OPERATOR | _with_approval_errors(operation)


def _with_approval_errors(operation: Json) -> Json:
    operation["responses"]["404"] = _own_failure("Not Found", ["unknown_approval"])
    operation["responses"]["409"] = _own_failure("Conflict", ["decided"])
    return operation


# --- schemas ---


_READ_ONLY = "Present if the server says that a call changes nothing"


def _schemas() -> Json:
    tool: Json = {
        "serverName": TEXT,
        "toolName": TEXT,
        "qualifiedName": TEXT,
        "scriptName": {**TEXT, "description": "The function in scripts"},
        "description": {"type": _OR_NULL},
        "inputSchema": _SCHEMA,
        "outputSchema": _SCHEMA,
    }
    number: Json = {"type": "number"}
    scores = object_of(dict.fromkeys(("semantic", "fuzzy", "lexical", "combined"), number))
    return {
        "McpServer": object_of(
            {"name": TEXT, "title": {"type": _OR_NULL}, "instructions": {"type": _OR_NULL}}
        ),
        "GatewayTool": object_of(tool, {"readOnly": {"const": True, "description": _READ_ONLY}}),
        "ToolMatch": object_of(
            {
                "tool": object_of({**tool, "toolId": TEXT}),
                "score": number,
                "scoreBreakdown": scores,
                "reason": TEXT,
            }
        ),
        "ToolArguments": {"type": "object", "description": "Matches the tool's `inputSchema`"},
        "SearchStats": object_of(
            {
                "toolsIndexed": COUNT,
                "model": TEXT,
                "semanticAvailable": FLAG,
                "cachedEmbeddings": COUNT,
                "cacheHitRate": number,
            }
        ),
        "GatewayStatus": _status(),
        "WaitingCall": object_of(
            {
                "id": TEXT,
                "server": TEXT,
                "tool": TEXT,
                "run": {"type": _OR_NULL, "description": "Id of the run that made the call"},
                "askedAt": TIME,
                "seconds": {
                    "type": ["number", "null"],
                    "description": "How long the call waits for a decision; null for one of a suspended run",
                },
                "arguments": {"description": "The exact arguments; null in lists if they are very long"},
            },
            {"argumentsBegin": TEXT, "argumentsBytes": COUNT},
        ),
        "Decision": object_of(
            {"decision": {"enum": ["allow", "deny"]}},
            {
                "reason": {"type": _OR_NULL, "description": "The guest gets it with a denial"},
                "remember": {
                    **FLAG,
                    "description": "Whether it holds for later calls of this tool in the run",
                },
            },
            extra_fields=True,
        ),
    }


def _status() -> Json:
    server = object_of(
        {
            "name": TEXT,
            "title": {"type": _OR_NULL},
            "state": TEXT,
            "error": {"type": _OR_NULL},
            "warnings": TEXTS,
            "tools": COUNT,
        }
    )
    approvals = object_of({"pending": COUNT, "rules": _OBJECT, "unmatchedRules": TEXTS})
    return object_of(
        {
            "status": {"const": "ok"},
            "revision": TEXT,
            "uptimeSeconds": {"type": "number"},
            "tools": COUNT,
            "servers": {"type": "array", "items": server},
            "collisions": {"type": "array", "items": _OBJECT},
            "problems": {"type": "array", "items": _OBJECT},
            "approvals": approvals,
        }
    )
