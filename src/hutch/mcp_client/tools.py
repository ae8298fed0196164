"""Models of servers and tools, and unwrapping of tool results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from hutch.errors import UpstreamError
from hutch.session.json_value import NotJsonSafe
from hutch.session.large_json import decode_large_value

if TYPE_CHECKING:
    from mcp.types import CallToolResult

ServerState: TypeAlias = Literal["idle", "connecting", "connected", "failed"]

MAX_MESSAGE_CHARS = 8_000
MAX_BLOCKS = 1_000
"""Maximum number of content blocks of a result. The SDK takes 30 µs to validate one."""
_BLOCK_FIELDS = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": (),
}


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as described by its server. The description is untrusted and may be long, false or harmful."""

    server: str
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    reads_resources: bool = False
    """True for the tool that Hutch adds to servers with resources (see `tool_list.add_resource_reader`)."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ServerState
    title: str | None = None
    instructions: str | None = None
    error: str | None = None
    """Reason for the failure, with the last line of the server's stderr. For the operator, not for scripts.
    """
    tools: int = 0
    warnings: tuple[str, ...] = ()
    was_tried: bool = False
    """True if an attempt to connect has finished, successful or not."""


def tools_digest(tools: Iterable[McpTool]) -> str:
    """Returns a digest of one server's tools and schemas that does not depend on their order."""
    return _digest(sorted(tools, key=lambda tool: tool.name))


def combined_digest(digests: Mapping[str, str]) -> str:
    """Combines the digests of all servers, by name."""
    return _digest(digests)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def argument_problem(tool: McpTool, arguments: dict[str, Any]) -> str | None:
    """Describes how the arguments of a call differ from the tool's schema; None if they match it."""
    # Import the module only when it is needed, because most calls succeed.
    from hutch.session.schema.problems import describe_mismatch

    problem = describe_mismatch(tool.input_schema, arguments, "", formats=None)
    return f"Invalid input for tool {tool.name}: {problem}" if problem else None


# --- results ---


class McpToolResult(NamedTuple):
    """Result of a call. `value` is what scripts get (see `unwrap_result`)."""

    value: Any
    content: list[dict[str, Any]]
    structured: Any = None


def content_problem(result: Mapping[str, Any]) -> str | None:
    """Returns why the content blocks of a result are not valid, or None. Called before the SDK validates a
    result, because the SDK describes every problem of every block, which takes a minute for 400,000 blocks.
    """
    content = result.get("content", [])
    if not isinstance(content, list):
        return "content: expected a list"
    if len(content) > MAX_BLOCKS:
        return f"it has {len(content)} content blocks; the limit is {MAX_BLOCKS}"
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        fields = _BLOCK_FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is None or not all(isinstance(block.get(field), str) for field in fields):
            return f"content.{number}: expected a content block, such as a text"
    return None


async def unwrap_result(
    result: CallToolResult, has_output_schema: bool, *, server: str = "", tool: str = ""
) -> Any:
    """Returns the value of a result. Raises UpstreamError with the tool's message if the tool failed.

    The value is the structured content if there is any. Otherwise a single text block gives its text, or the
    decoded object or array if the text is JSON. Any other result gives the list of content blocks.
    """
    if result.is_error:
        raise _tool_error(result, server, tool)
    content = result.content
    if result.structured_content is not None:
        return result.structured_content
    # Some servers send null instead of omitting `structuredContent`. So null counts as the value only if
    # there is no other content, or if the tool has an output schema.
    if not content or (has_output_schema and "structured_content" in result.model_fields_set):
        return None
    if len(content) == 1 and content[0].type == "text":
        return await _parse_text(content[0].text)
    return content_blocks(result)


def _tool_error(result: CallToolResult, server: str, tool: str) -> UpstreamError:
    texts = [block.text for block in result.content if block.type == "text"]
    message = "\n".join(texts).strip() or "the tool failed without a message"
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]}…"
    details = result.structured_content
    if details is None and len(texts) < len(result.content):
        details = content_blocks(result)
    return UpstreamError(server, tool, message, kind="tool_error", details=details)


async def _parse_text(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return await decode_large_value(text.encode())
    except (NotJsonSafe, UnicodeEncodeError):
        return text


def content_blocks(result: CallToolResult) -> list[dict[str, Any]]:
    return [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
