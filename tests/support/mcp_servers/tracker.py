"""A small issue tracker as a real MCP server, made with the official SDK: typed tools with required
arguments.

`python tests/support/mcp_servers/tracker.py` runs it over stdio. In tests, `app()` serves it over HTTP.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from starlette.applications import Starlette

TITLE = {"type": "string", "description": "What it is about."}
ISSUE = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "title": TITLE},
    "required": ["number", "title"],
}
TOOLS = (
    Tool(
        name="create_issue",
        description="Creates an issue.",
        input_schema={
            "type": "object",
            "properties": {"title": TITLE, "labels": {"type": "array", "items": {"enum": ["bug", "idea"]}}},
            "required": ["title"],
        },
        output_schema=ISSUE,
    ),
    Tool(
        name="get_issue",
        description="Reads an issue.",
        input_schema={
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
        output_schema=ISSUE,
    ),
)


class Tracker:
    def __init__(self) -> None:
        self.titles: list[str] = []

    async def list_tools(self, _: Any, __: Any) -> ListToolsResult:
        return ListToolsResult(tools=[*TOOLS])

    async def call_tool(self, _: Any, params: Any) -> CallToolResult:
        arguments = params.arguments or {}
        if params.name == "create_issue":
            self.titles.append(arguments["title"])
            return issue(len(self.titles), arguments["title"])
        number = arguments["number"]
        if not 0 < number <= len(self.titles):
            there_is_none = TextContent(type="text", text=f"there is no issue {number}")
            return CallToolResult(content=[there_is_none], is_error=True)
        return issue(number, self.titles[number - 1])

    def server(self) -> Server[Any]:
        return Server("tracker", version="1.0", on_list_tools=self.list_tools, on_call_tool=self.call_tool)


def issue(number: int, title: str) -> CallToolResult:
    found = {"number": number, "title": title}
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(found))], structured_content=found
    )


def app() -> Starlette:
    """Streamable HTTP at /mcp."""
    return Tracker().server().streamable_http_app()


async def main() -> None:
    server = Tracker().server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(NotificationOptions()))


if __name__ == "__main__":
    anyio.run(main)
