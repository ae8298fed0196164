"""Every tool of every server, passed through: its name here, its description, and its result."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from mcp.types import CallToolResult, ContentBlock, TextContent, Tool
from pydantic import TypeAdapter, ValidationError

from hutch.doors.mcp.answers import MOST_CHARS, answer, clip, json_text, sound
from hutch.doors.toolscript.catalog import Catalog, Entry
from hutch.session.jsonvalue import NotJsonSafe, encode_value, well_formed

# What clients and models take for a name.
MOST_NAME = 64
UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_KINDS = frozenset({"text", "image", "audio", "resource", "resource_link"})
MOST_DESCRIPTION = 8_000


def names(catalog: Catalog) -> dict[str, Entry]:
    """Tools by their names here, each of which stays the same while the tool is there."""
    found: dict[str, Entry] = {}
    for entry in catalog:
        name = UNFIT.sub("_", entry.qualified)
        if name != entry.qualified or len(name) > MOST_NAME or name in found:
            mark = hashlib.sha256(encode_value(entry.qualified)).hexdigest()[:8]
            name = f"{name[: MOST_NAME - 9]}_{mark}"
        found[name] = entry
    return found


def described(name: str, entry: Entry) -> Tool:
    return Tool(
        name=name,
        description=entry.description and well_formed(clip(entry.description, MOST_DESCRIPTION)),
        input_schema=object_schema(entry.input_schema) or {"type": "object"},
        output_schema=object_schema(entry.output_schema),
    )


def passed(entry: Entry, value: Any) -> CallToolResult:
    """What a tool gave, wrapped again."""
    if object_schema(entry.output_schema) is not None and isinstance(value, dict):
        # It must fit the schema, so it is whole or not at all.
        text = clip(json_text(value), MOST_CHARS)
        return answer(text, value)
    blocks = _blocks(value)
    if blocks is not None:
        return CallToolResult(content=[_clipped(each) for each in blocks])
    if value is None:
        return CallToolResult(content=[])
    return answer(clip(value if isinstance(value, str) else json_text(value), MOST_CHARS))


def _blocks(value: Any) -> list[ContentBlock] | None:
    """The blocks of a result that is no single text."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(each, dict) and each.get("type") in _KINDS for each in value):
        return None
    try:
        return _BLOCKS.validate_python(sound(value), by_name=False)
    except ValidationError:
        return None


def _clipped(block: ContentBlock) -> ContentBlock:
    if isinstance(block, TextContent):
        return block.model_copy(update={"text": clip(block.text, MOST_CHARS)})
    return block


def object_schema(schema: Any) -> dict[str, Any] | None:
    """A schema that every version of the protocol takes. One that none does would cost all tools."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    try:
        encode_value(schema)
    except NotJsonSafe:
        return None
    found: dict[str, Any] = sound(schema)
    properties, required = found.get("properties", {}), found.get("required", [])
    fine = isinstance(properties, dict) and all(isinstance(each, dict) for each in properties.values())
    listed = isinstance(required, list) and all(isinstance(each, str) for each in required)
    return found if fine and listed else {"type": "object"}
