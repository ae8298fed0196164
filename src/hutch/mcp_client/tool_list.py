"""Fetches and filters the tool list of a server."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.client.session import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import ListToolsResult, PaginatedRequestParams, Tool
from pydantic import ValidationError

from hutch.errors import UpstreamError
from hutch.mcp_client.config import ServerConfig
from hutch.mcp_client.error_messages import one_line
from hutch.mcp_client.errors import ServerUnreachable
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.tools import McpTool

MAX_NAME_CHARS = 256
MAX_WARNINGS = 20
MAX_URI_CHARS = 8_192
RESOURCE_READER = "read_resource"
_READER_DESCRIPTION = (
    "Reads a resource of this server by its URI, such as the `uri` of a `resource_link` that a tool returned."
    " Text is in `text`, other data is in `blob` in base64."
)
_READER_INPUT = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
_READER_OUTPUT = {
    "type": "object",
    "properties": {
        "contents": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("uri", "mimeType", "text", "blob")},
                "required": ["uri"],
            },
        }
    },
    "required": ["contents"],
}


class ToolList(msgspec.Struct):
    tools: dict[str, McpTool] = {}
    warnings: tuple[str, ...] = ()


async def fetch_tools(
    config: ServerConfig, session: ClientSession, dispatcher: JSONRPCDispatcher, limits: ServerLimits
) -> ToolList:
    """Fetches all pages of the tool list. Raises the session's errors, and ServerUnreachable if the list does
    not end.
    """
    tools: dict[str, McpTool] = {}
    warnings: list[str] = []
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for _ in range(limits.max_pages):
        page, cursor = await _fetch_page(session, dispatcher, cursor, warnings)
        for tool in page:
            _add_tool(config, tool, tools, warnings)
        size += sum(map(_size, page))
        if size > limits.max_tool_list_bytes:
            raise ServerUnreachable(f"its list of tools is larger than {limits.max_tool_list_bytes} bytes")
        if len(tools) > limits.max_tools:
            raise ServerUnreachable(f"it has more than {limits.max_tools} tools")
        if cursor is None:
            return ToolList(tools, limit_warnings((*warnings, *_missing_tools(config, tools))))
        if cursor in seen:
            break
        seen.add(cursor)
    raise ServerUnreachable(f"its list of tools has no end ({len(seen)} pages)")


async def _fetch_page(
    session: ClientSession, dispatcher: JSONRPCDispatcher, cursor: str | None, warnings: list[str]
) -> tuple[list[Tool], str | None]:
    try:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
    except ValidationError:
        return await _fetch_page_leniently(session, dispatcher, cursor, warnings)
    return page.tools, page.next_cursor


async def _fetch_page_leniently(
    session: ClientSession, dispatcher: JSONRPCDispatcher, cursor: str | None, warnings: list[str]
) -> tuple[list[Tool], str | None]:
    """Fetches one page and parses its tools one by one, so that an invalid tool does not affect the
    others.
    """
    headers = {"mcp-protocol-version": session.protocol_version or ""}
    params = None if cursor is None else {"cursor": cursor}
    raw = await dispatcher.send_raw_request("tools/list", params, {"headers": headers})
    entries: Any = raw.get("tools")
    tools: list[Tool] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            tools.append(Tool.model_validate(entry, by_name=False))
        except ValidationError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            label = repr(name[:80]) if isinstance(name, str) else f"number {number + 1}"
            warnings.append(f"the tool {label} is left out: {one_line(error)}")
    # Validate the rest of the response, without the tools.
    page = ListToolsResult.model_validate({**raw, "tools": []}, by_name=False)
    return tools, page.next_cursor


def _size(tool: Tool) -> int:
    parts = (tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema)
    return len(msgspec.json.encode(parts))


def _add_tool(config: ServerConfig, tool: Tool, tools: dict[str, McpTool], warnings: list[str]) -> None:
    if not config.includes(tool.name):
        return
    if not tool.name or len(tool.name) > MAX_NAME_CHARS:
        warnings.append(f"a tool is left out: its name has {len(tool.name)} characters")
    elif tool.name in tools:
        warnings.append(f"the tool {tool.name!r} is listed twice; the first counts")
    else:
        annotations = tool.annotations
        tools[tool.name] = McpTool(
            server=config.name,
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.input_schema,
            output_schema=tool.output_schema,
            annotations=None
            if annotations is None
            else annotations.model_dump(by_alias=True, exclude_none=True),
        )


def add_resource_reader(config: ServerConfig, tools: dict[str, McpTool]) -> None:
    """Adds a tool that reads the server's resources. Filters, approval rules, types and records apply to it
    as to the server's own tools, so resources need no separate rules.

    If the server has a tool with the same name, adds nothing.
    """
    if RESOURCE_READER not in tools and config.includes(RESOURCE_READER):
        tools[RESOURCE_READER] = McpTool(
            server=config.name,
            name=RESOURCE_READER,
            description=_READER_DESCRIPTION,
            input_schema=_READER_INPUT,
            output_schema=_READER_OUTPUT,
            annotations={"readOnlyHint": True},
            reads_resources=True,
        )


def check_resource_uri(tool: McpTool, arguments: dict[str, Any]) -> None:
    """Raises UpstreamError if `uri` is not a URI of acceptable length."""
    uri = arguments.get("uri")
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URI_CHARS:
        message = f"uri: expected a URI of at most {MAX_URI_CHARS} characters"
        raise UpstreamError(tool.server, tool.name, message, kind="invalid_arguments")


def _missing_tools(config: ServerConfig, tools: dict[str, McpTool]) -> list[str]:
    names = [name for name in config.include or () if "*" not in name and config.includes(name)]
    return [
        f"includeTools names {name!r}, which the server does not have" for name in names if name not in tools
    ]


def limit_warnings(warnings: tuple[str, ...]) -> tuple[str, ...]:
    omitted = len(warnings) - MAX_WARNINGS
    return warnings if omitted <= 0 else (*warnings[:MAX_WARNINGS], f"and {omitted} more warnings")
