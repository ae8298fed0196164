"""Images, audio and embedded resources in results of code, and files that code wrote. Clients get them as
separate content blocks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from itertools import islice
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
# Images that models accept. Images of other types, such as SVG, are sent as resources.
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
    """The result, with a note in place of the data of each block."""
    blocks: list[MediaBlock]


def take_media(value: Any) -> TakenMedia:
    """Takes MCP content blocks with binary data or resources out of a result."""
    notes: dict[int, dict[str, Any]] = {}
    blocks: list[MediaBlock] = []
    parents: dict[int, Any] = {}
    for block in _candidates(value, parents):
        checked = _checked(block)
        if checked is not None:
            blocks.append(checked)
            notes[id(block)] = _note(block, len(blocks))
            if len(blocks) == MAX_MEDIA:
                break
    if not blocks:
        return TakenMedia(value, [])
    changed = set(notes)
    for key in notes:
        while (parent := parents.get(key)) is not None:
            key = id(parent)
            changed.add(key)
    return TakenMedia(_replaced(value, notes, changed), blocks)


def _candidates(value: Any, parents: dict[int, Any]) -> Iterator[dict[str, Any]]:
    """Yields the objects that may be blocks. Stores the container of each visited object and list in
    `parents`.
    """
    level, visited = [(value, None)], 0
    for _ in range(_MAX_DEPTH):
        below: list[tuple[Any, Any]] = []
        for item, parent in level:
            visited += 1
            if visited > _MAX_VALUES:
                return
            if isinstance(item, (dict, list)):
                parents[id(item)] = parent
            if isinstance(item, dict) and item.get("type") in _KINDS:
                yield item
            elif isinstance(item, (dict, list)) and len(below) < _MAX_VALUES:
                items = item.values() if isinstance(item, dict) else item
                below += ((each, item) for each in islice(items, _MAX_VALUES))
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


def _replaced(value: Any, notes: dict[int, dict[str, Any]], changed: set[int]) -> Any:
    """Returns the value with notes in place of blocks. Copies only the containers of blocks, because a result
    may have 250 000 values.
    """
    if id(value) not in changed:
        return value
    if id(value) in notes:
        return notes[id(value)]
    if isinstance(value, dict):
        return {
            name: _replaced(item, notes, changed) if id(item) in changed else item
            for name, item in value.items()
        }
    return [_replaced(item, notes, changed) if id(item) in changed else item for item in value]


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
