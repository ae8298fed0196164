"""What a tool's result is to a script: the value itself, not the protocol's wrapping of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch.errors import UpstreamError
from hutch.session.jsonvalue import NotJsonSafe, decode_value

if TYPE_CHECKING:
    from mcp.types import CallToolResult

MAX_MESSAGE = 8_000


def unwrap(result: CallToolResult, has_output_schema: bool, *, server: str = "", tool: str = "") -> Any:
    """The value of a result. Raises UpstreamError with the tool's own text when the tool says that it failed.

    A tool with an output schema gives its structured content. Of others a single text is that text, or what
    it is the JSON of if that is an object or a list; anything else stays the list of blocks that it is.
    """
    if result.is_error:
        raise _failure(result, server, tool)
    content = result.content
    structured = "structured_content" in result.model_fields_set
    if structured and (has_output_schema or not content):
        return result.structured_content
    if not content:
        return None
    if len(content) == 1 and content[0].type == "text":
        return _parsed(content[0].text)
    return _blocks(result)


def _failure(result: CallToolResult, server: str, tool: str) -> UpstreamError:
    texts = [block.text for block in result.content if block.type == "text"]
    message = "\n".join(texts).strip() or "the tool failed and said nothing of why"
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}…"
    details = result.structured_content
    if details is None and len(texts) < len(result.content):
        details = _blocks(result)
    return UpstreamError(server, tool, message, kind="tool_error", details=details)


def _parsed(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return decode_value(text.encode())
    except (NotJsonSafe, UnicodeEncodeError):
        return text


def _blocks(result: CallToolResult) -> list[dict[str, Any]]:
    return [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
