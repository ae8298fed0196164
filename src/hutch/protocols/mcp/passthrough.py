"""Offers the tools of all MCP servers to clients, with their names, descriptions, results and resources."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import quote, unquote

from mcp.types import CallToolResult, ContentBlock, ReadResourceResult, ResourceLink, TextContent, Tool
from pydantic import TypeAdapter

from hutch.mcp_client.tools import McpToolResult
from hutch.protocols.mcp.results import MAX_CHARS, clip, json_text, replace_surrogates, text_result
from hutch.protocols.toolscript.gateway.catalog import Catalog, CatalogEntry
from hutch.session.json_value import NotJsonSafe, encode_value, well_formed

# Maximum length of tool names in clients and models.
MAX_TOOL_NAME = 64
INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_BLOCK_LIST: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
MAX_DESCRIPTION = 8_000
# Start of the URIs under which clients read the resources of MCP servers. The server's own URI is not used,
# because two servers may have the same URI.
_RESOURCE_PREFIX = "hutch://"


def passed_tools(catalog: Catalog) -> dict[str, CatalogEntry]:
    """Returns the tools by name. A tool keeps its name as long as it exists. Tools that read resources are
    left out, because clients use `resources/read` instead.
    """
    tools: dict[str, CatalogEntry] = {}
    for entry in catalog:
        if entry.reads_resources:
            continue
        name = INVALID_NAME_CHARS.sub("_", entry.qualified)
        if name != entry.qualified or len(name) > MAX_TOOL_NAME or name in tools:
            digest = hashlib.sha256(encode_value(entry.qualified)).hexdigest()[:8]
            name = f"{name[: MAX_TOOL_NAME - 9]}_{digest}"
        tools[name] = entry
    return tools


def describe_tool(name: str, entry: CatalogEntry) -> Tool:
    return Tool(
        name=name,
        description=entry.description and well_formed(clip(entry.description, MAX_DESCRIPTION)),
        input_schema=object_schema(entry.input_schema) or {"type": "object"},
        output_schema=object_schema(entry.output_schema),
    )


def wrap_result(entry: CatalogEntry, result: McpToolResult) -> CallToolResult:
    """Converts the result of a tool back to an MCP result. Only texts are shortened. Structured content stays
    complete, because it must match the tool's schema.
    """
    content = [_pass_block(entry.server, block) for block in _blocks(result.content)]
    structured = result.structured
    if structured is None and object_schema(entry.output_schema) is not None:
        # Clients expect structured content from every tool that has an output schema.
        structured = result.value
    if isinstance(structured, dict):
        content = content or text_result(clip(json_text(structured), MAX_CHARS)).content
        return CallToolResult(content=content, structured_content=replace_surrogates(structured))
    if not content and result.value is not None:
        # Send the value as text, because older protocol versions allow only objects as structured content.
        return text_result(clip(json_text(result.value), MAX_CHARS))
    return CallToolResult(content=content)


def _blocks(content: list[dict[str, Any]]) -> list[ContentBlock]:
    return _BLOCK_LIST.validate_python(replace_surrogates(content), by_name=False)


def _pass_block(server: str, block: ContentBlock) -> ContentBlock:
    if isinstance(block, TextContent):
        return block.model_copy(update={"text": clip(block.text, MAX_CHARS)})
    if isinstance(block, ResourceLink):
        return block.model_copy(update={"uri": passed_uri(server, block.uri)})
    return block


def object_schema(schema: Any) -> dict[str, Any] | None:
    """Returns a schema that all protocol versions accept, or None. One invalid schema would invalidate the
    whole tool list.
    """
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    try:
        encode_value(schema)
    except NotJsonSafe:
        return None
    cleaned: dict[str, Any] = replace_surrogates(schema)
    properties, required = cleaned.get("properties", {}), cleaned.get("required", [])
    valid_properties = isinstance(properties, dict) and all(
        isinstance(schema, dict) for schema in properties.values()
    )
    valid_required = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return cleaned if valid_properties and valid_required else {"type": "object"}


# --- resources ---


def passed_uri(server: str, uri: str) -> str:
    """Returns the URI under which clients read a resource of a server: `hutch://SERVER/ENCODED_URI`."""
    return f"{_RESOURCE_PREFIX}{quote(well_formed(server), safe='')}/{quote(well_formed(uri), safe='')}"


def parse_passed_uri(uri: str) -> tuple[str, str] | None:
    """Returns the server and the URI that the server uses, or None if `uri` was not made by `passed_uri`."""
    server, slash, original = uri.removeprefix(_RESOURCE_PREFIX).partition("/")
    if not uri.startswith(_RESOURCE_PREFIX) or not slash:
        return None
    return unquote(server), unquote(original)


def wrap_resource(uri: str, value: Any) -> ReadResourceResult:
    """Converts the result of a server's resource reader. The URIs of the contents are converted to URIs that
    the client can read.
    """
    parsed = parse_passed_uri(uri)
    server = "" if parsed is None else parsed[0]
    contents = [{**part, "uri": passed_uri(server, part["uri"])} for part in value["contents"]]
    return ReadResourceResult.model_validate({"contents": replace_surrogates(contents)}, by_name=False)
