"""Images, audio and embedded resources in results of code, and files that code wrote. Clients get them as
separate content blocks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextResourceContents,
)
from pydantic import TypeAdapter, ValidationError

from hutch.protocols.mcp.results import MAX_CHARS, ReportedFile, clip, replace_surrogates
from hutch.session.files.model import File

MAX_MEDIA = 20
MAX_FILE_BYTES = 4 * 1024 * 1024
"""Maximum size of all files in one result. Models accept images of up to about 5 MB."""
# Images that models accept. Others, such as SVG, are resources.
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
# Limits of the search for content blocks. Blocks beyond the maximum depth or the maximum number of values
# stay in the result.
_MAX_DEPTH = 5
_MAX_VALUES = 2_000
_KINDS = ("image", "audio", "resource")

MediaBlock = ImageContent | AudioContent | EmbeddedResource
_BLOCK: TypeAdapter[MediaBlock] = TypeAdapter(MediaBlock)


class TakenMedia(NamedTuple):
    value: Any
    """The result, in which each block has a note instead of its data."""
    blocks: list[MediaBlock]


def take_media(value: Any) -> TakenMedia:
    """Takes MCP content blocks with binary data or resources out of a result."""
    found: dict[int, tuple[dict[str, Any], MediaBlock]] = {}
    for block in _candidates(value):
        checked = _checked(block)
        if checked is not None:
            found[id(block)] = _note(block, len(found) + 1), checked
            if len(found) == MAX_MEDIA:
                break
    if not found:
        return TakenMedia(value, [])
    notes = {key: note for key, (note, _) in found.items()}
    return TakenMedia(_replaced(value, notes, 0), [block for _, block in found.values()])


def _candidates(value: Any) -> Iterator[dict[str, Any]]:
    level, visited = [value], 0
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            visited += 1
            if visited > _MAX_VALUES:
                return
            if isinstance(item, dict) and item.get("type") in _KINDS:
                yield item
            elif isinstance(item, (dict, list)) and len(below) < _MAX_VALUES:
                below += item.values() if isinstance(item, dict) else item
        level = below


def _checked(block: dict[str, Any]) -> MediaBlock | None:
    try:
        checked = _BLOCK.validate_python(replace_surrogates(block), by_name=False)
        if isinstance(checked, ImageContent | AudioContent):
            binascii.a2b_base64(checked.data, strict_mode=True)
            return checked
        text = getattr(checked.resource, "text", None)
        if text is not None:
            checked.resource = checked.resource.model_copy(update={"text": clip(text, MAX_CHARS)})
    except (ValidationError, ValueError):
        return None
    return checked


def _note(block: dict[str, Any], number: int) -> dict[str, Any]:
    note = f"(content {number} of this answer)"
    if block["type"] != "resource":
        return {**block, "data": note}
    kept = {name: value for name, value in block["resource"].items() if name not in ("text", "blob")}
    return {**block, "resource": {**kept, "content": note}}


def _replaced(value: Any, notes: dict[int, dict[str, Any]], depth: int) -> Any:
    if id(value) in notes:
        return notes[id(value)]
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {name: _replaced(item, notes, depth + 1) for name, item in value.items()}
    if depth < _MAX_DEPTH and isinstance(value, list):
        return [_replaced(item, notes, depth + 1) for item in value]
    return value


# --- files ---


def file_blocks(files: Sequence[File], max_blocks: int) -> tuple[list[MediaBlock], list[ReportedFile]]:
    """Returns the content blocks of files, unless they are too large, and a report about each file."""
    blocks: list[MediaBlock] = []
    reported: list[ReportedFile] = []
    left = MAX_FILE_BYTES
    for file in files:
        is_included = len(blocks) < max_blocks and file.size <= left
        if is_included:
            left -= file.size
            blocks.append(_file_block(file))
        reported.append(ReportedFile(file.name, file.mime_type, file.size, is_included))
    return blocks, reported


def _file_block(file: File) -> MediaBlock:
    if file.mime_type in _IMAGE_TYPES:
        return ImageContent(type="image", data=_base64(file.data), mime_type=file.mime_type)
    uri = f"hutch-file:///{quote(file.name)}"
    if (text := file.text) is not None:
        content = TextResourceContents(uri=uri, mime_type=file.mime_type, text=clip(text, MAX_CHARS))
        return EmbeddedResource(type="resource", resource=content)
    blob = BlobResourceContents(uri=uri, mime_type=file.mime_type, blob=_base64(file.data))
    return EmbeddedResource(type="resource", resource=blob)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
