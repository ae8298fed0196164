"""An example MCP server without a process: a shop with three tools, for the first trial of the playground."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from hutch.errors import UpstreamError
from hutch.mcp_client.tools import McpTool, McpToolResult, ServerStatus, argument_problem, tools_digest
from hutch.session.json_value import encode_value

NAME = "shop"

_PRICES = {"lamp": 20, "desk": 150, "chair": 85}
# Long enough to make the bars of a timeline visible.
_CALL_SECONDS = 0.03


def _tool(name: str, description: str, properties: dict[str, Any], result: dict[str, Any]) -> McpTool:
    return McpTool(
        server=NAME,
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        },
        output_schema={"type": "object", "properties": result, "required": [*result]},
    )


_ARTICLE = {"type": "string", "description": "Name of an article, such as lamp."}
_TOOLS = {
    tool.name: tool
    for tool in (
        _tool(
            "list_articles",
            "List the articles of the example shop.",
            {},
            {"articles": {"type": "array", "items": {"type": "string"}}},
        ),
        _tool(
            "get_price",
            "Get the price of an article of the example shop.",
            {"article": _ARTICLE},
            {"article": {"type": "string"}, "price": {"type": "number"}},
        ),
        _tool(
            "order",
            "Order articles of the example shop. Nothing is stored.",
            {"article": _ARTICLE, "count": {"type": "integer", "minimum": 1, "maximum": 100}},
            {"total": {"type": "number"}},
        ),
    )
}


class ExampleServers:
    """The example server, with the interface of `McpServers`."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.revision = f"{secrets.token_hex(8)}-{tools_digest(_TOOLS.values())}"

    def servers(self) -> list[ServerStatus]:
        title = "Example shop, because no MCP server is configured"
        return [
            ServerStatus(name=NAME, state="connected", title=title, tools=len(_TOOLS), was_tried=True),
        ]

    async def tools(self) -> list[McpTool]:
        return [*_TOOLS.values()]

    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Any = None,
        whole: bool = False,
        on_input: Any = None,
    ) -> Any:
        """Raises UpstreamError."""
        problem = argument_problem(_TOOLS[tool], arguments)
        if problem is not None:
            raise UpstreamError(server, tool, problem, kind="invalid_arguments")
        await asyncio.sleep(_CALL_SECONDS)
        value = _result(tool, arguments)
        if not whole:
            return value
        return McpToolResult(value, [{"type": "text", "text": encode_value(value).decode()}], value)

    async def close(self) -> None:
        pass


def _result(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if tool == "list_articles":
        return {"articles": [*_PRICES]}
    article = arguments["article"]
    price = _PRICES.get(article)
    if price is None:
        message = f"There is no article {article[:100]!r}; the shop has {', '.join(_PRICES)}"
        raise UpstreamError(NAME, tool, message, kind="tool_error")
    return {"total": price * arguments["count"]} if tool == "order" else {"article": article, "price": price}
