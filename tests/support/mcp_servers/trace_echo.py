"""An MCP server made with the official SDK whose tool returns the trace context that it received.

`python tests/support/mcp_servers/trace_echo.py` runs it over stdio. `app()` is the same server as an ASGI
application.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.applications import Starlette


async def list_tools(context: Any, params: object) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name="trace", input_schema={"type": "object"})])


async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    header = None if context.request is None else context.request.headers.get("traceparent")
    seen = {"meta": (context.meta or {}).get("traceparent"), "header": header}
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(seen))])


def server() -> Server[Any]:
    return Server("trace-echo", version="1.0", on_list_tools=list_tools, on_call_tool=call_tool)


def app() -> Starlette:
    return server().streamable_http_app()


async def main() -> None:
    echo = server()
    async with stdio_server() as (read, write):
        await echo.run(read, write, echo.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
