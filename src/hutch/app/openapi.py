"""The OpenAPI document of `hutch serve`: every HTTP route of every protocol."""

from __future__ import annotations

from hutch.console import openapi as console
from hutch.http.errors import ERROR_KINDS
from hutch.http.health import PROTOCOL_VERSION
from hutch.http.openapi import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    ApiPart,
    Json,
    OperationBuilder,
    failure,
    header,
    object_of,
    openapi_document,
    ref,
    response,
)
from hutch.protocols.abilities import openapi as abilities
from hutch.protocols.execbox import openapi as execbox
from hutch.protocols.queue import openapi as queue
from hutch.protocols.rep.server import openapi as rep
from hutch.protocols.runs import openapi as runs
from hutch.protocols.toolscript.gateway import openapi as gateway
from hutch.protocols.tpmjs import openapi as tpmjs
from hutch.settings import Settings

_DESCRIPTION = """\
Runs untrusted code in a sandbox, for AI agents. Every request that runs something answers with the header
`X-Run-Id`, the id of its run. Errors outside of the protocols have the form
`{"success": false, "error": {"code", "message"}}`. Responses 429 and 503 have a `Retry-After` header."""


def document(settings: Settings) -> Json:
    """Returns the document with the limits and defaults of `settings`."""
    parts = (
        execbox.describe(settings),
        tpmjs.describe(settings),
        gateway.describe(),
        _mcp(),
        abilities.describe(),
        rep.describe(),
        runs.describe(),
        queue.describe(),
        *console.describe(),
        _server(),
    )
    return openapi_document(
        settings.executor_name, _DESCRIPTION, parts, needs_key=settings.api_key is not None
    )


def _server() -> ApiPart:
    public: Json = {"security": []}
    operation = OperationBuilder(ERROR_KINDS, ("FORBIDDEN",), failure)
    health = operation("Shows that the server is running", ref("Health"))
    health["responses"]["503"] = response("The server is shutting down", ref("Health"))
    ready = operation("Shows whether the server can serve requests", ref("Ready"))
    ready["responses"]["503"] = response("Not ready; the body gives the reasons", ref("Ready"))
    metrics = operation("Returns metrics for Prometheus", TEXT, ("UNAUTHORIZED",))
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": TEXT}}
    metrics["security"] = [{"operator_key": []}]
    paths = {
        "/health": {"get": public | health},
        "/ready": {"get": public | ready},
        "/metrics": {"get": metrics},
        "/openapi.json": {"get": public | operation("Returns this document", {"type": "object"})},
    }
    schemas = {
        "Health": object_of(
            {
                "status": {"enum": ["ok", "draining"]},
                "protocolVersion": {"const": PROTOCOL_VERSION},
                "implementationVersion": TEXT,
                "runtime": {"const": "deno"},
                "isolation": {"enum": ["container", "process"]},
                "uptimeSeconds": {"type": "number", "minimum": 0},
                "timestamp": {"type": "string", "format": "date-time"},
                "search": object_of({"ready": FLAG, "semantic": FLAG}),
            },
            {"records": object_of({"status": TEXT, "waiting": COUNT, "dropped": COUNT})},
        ),
        "Ready": object_of(
            {
                "ready": FLAG,
                "connecting": {
                    "anyOf": [TEXTS, COUNT],
                    "description": "MCP servers that are connected for the first time; without the operator's"
                    " key only their number",
                },
                "problems": {"type": "object", "additionalProperties": TEXT},
            }
        ),
    }
    return ApiPart("Server", "The state of the server, and this document.", paths, schemas)


def _mcp() -> ApiPart:
    operation = OperationBuilder(
        ERROR_KINDS, ("UNAUTHORIZED", "FORBIDDEN", "RATE_LIMITED", "UNAVAILABLE"), failure
    )
    session = header("Mcp-Session-Id", TEXT, "Session, from the response to `initialize`")
    events: Json = {"text/event-stream": {"schema": TEXT}}
    call = operation(
        "Sends a message to the MCP server",
        ref("JsonRpcMessage"),
        body="JsonRpcMessage",
        example={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        parameters=[
            session,
            header("Accept", {"const": "application/json, text/event-stream"}, "The client takes both"),
        ],
    )
    call["responses"]["200"]["content"] |= events
    call["responses"]["202"] = {"description": "Accepted a notification or a response"}
    listen = operation("Streams messages of the MCP server", TEXT, parameters=[session])
    listen["responses"]["200"]["content"] = events
    end = operation("Ends a session", {}, parameters=[session])
    del end["responses"]["200"]["content"]
    for each in (call, listen, end):
        each["responses"]["default"] = response("Error of the MCP protocol", {"type": "object"})
    message: Json = {
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}},
        "required": ["jsonrpc"],
        "description": "A message of the Model Context Protocol",
    }
    description = (
        "Hutch as an MCP server over streamable HTTP: tools to search, describe and run code over all tools."
        " MCP clients use it; the Model Context Protocol defines its messages."
    )
    paths = {"/mcp": {"post": call, "get": listen, "delete": end}}
    return ApiPart("MCP", description, paths, {"JsonRpcMessage": message})
