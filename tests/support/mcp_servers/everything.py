"""A real MCP server with tools of every kind, made with the official SDK.

`python tests/support/mcp_servers/everything.py` runs it over stdio. In tests, `app()` and `sse_app()` are the
same server as ASGI applications (see asgi_server.py).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolResult,
    ImageContent,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

PAGE = 7
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
LONG_NAME = "a_tool_with_a_name_that_" + "goes_on_" * 13

Handler = Callable[[dict[str, Any], Any], Awaitable[CallToolResult]]


def text(*parts: object, error: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=str(part)) for part in parts], is_error=error
    )


def start_processes() -> list[int]:
    """Starts two children and returns their process ids. One child is in this process group. The other child
    is in its own session and starts a child, too.
    """
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    leave = "import os, subprocess, sys; os.setsid(); subprocess.Popen(sys.argv[1:]).wait()"
    commands = (sleep, [sys.executable, "-I", "-S", "-c", leave, *sleep])
    null = subprocess.DEVNULL
    return [subprocess.Popen(each, stdin=null, stdout=null).pid for each in commands]


class Everything:
    """The tools of the server, and the state of the tools."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.started = 0
        self.grown = 0
        self.listed = 0
        self.handlers: dict[str, Handler] = {}
        self.tools: list[Tool] = []
        for each in (self.plain, self.results, self.failures, self.slow_ones, self.changes, self.odd_names):
            each()

    def add(
        self,
        name: str,
        handler: Handler,
        description: str | None = None,
        *,
        output: dict[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        **properties: Any,
    ) -> None:
        schema = {"type": "object", "properties": properties}
        self.handlers[name] = handler
        self.tools.append(
            Tool(
                name=name,
                description=description,
                input_schema=schema,
                output_schema=output,
                annotations=annotations,
            )
        )

    def plain(self) -> None:
        async def echo(arguments: dict[str, Any], _: Any) -> CallToolResult:
            value = arguments.get("value")
            return text(value if isinstance(value, str) else json.dumps(value))

        async def environment(_: dict[str, Any], __: Any) -> CallToolResult:
            return text(json.dumps(dict(os.environ)))

        async def headers(_: dict[str, Any], context: Any) -> CallToolResult:
            return text(json.dumps(dict(context.request.headers) if context.request else {}))

        async def process(_: dict[str, Any], __: Any) -> CallToolResult:
            return text(json.dumps({"pid": os.getpid(), "cwd": str(Path.cwd())}))

        self.add("echo", echo, "Gives back what it gets.", value={})
        self.add("environment", environment, "The variables of the server.")
        self.add("headers", headers, "The headers of the request.")
        self.add("process", process, "Which process the server is.")

    def results(self) -> None:
        total = {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}

        async def add(arguments: dict[str, Any], _: Any) -> CallToolResult:
            total = arguments["a"] + arguments["b"]
            return CallToolResult(
                content=[TextContent(type="text", text=f"The sum is {total}.")],
                structured_content={"sum": total},
            )

        async def broken_promise(_: dict[str, Any], __: Any) -> CallToolResult:
            return CallToolResult(content=[], structured_content={"sum": "many"})

        async def structured(_: dict[str, Any], __: Any) -> CallToolResult:
            return CallToolResult(
                content=[TextContent(type="text", text="One file.")], structured_content={"files": ["a"]}
            )

        async def image(_: dict[str, Any], __: Any) -> CallToolResult:
            return CallToolResult(content=[ImageContent(type="image", data=PIXEL, mime_type="image/png")])

        async def blocks(_: dict[str, Any], __: Any) -> CallToolResult:
            picture = ImageContent(type="image", data=PIXEL, mime_type="image/png")
            link = ResourceLink(type="resource_link", uri="file:///a", name="a")
            return CallToolResult(content=[TextContent(type="text", text="first"), picture, link])

        async def zero(_: dict[str, Any], __: Any) -> CallToolResult:
            return text("0")

        async def nothing(_: dict[str, Any], __: Any) -> CallToolResult:
            return text()

        async def large(arguments: dict[str, Any], _: Any) -> CallToolResult:
            return text("x" * int(arguments["bytes"]))

        number = {"type": "number", "description": "A number."}
        read_only = ToolAnnotations(read_only_hint=True)
        self.add("add", add, "Adds two numbers.", output=total, annotations=read_only, a=number, b=number)
        self.add("broken_promise", broken_promise, "Gives not what it says.", output=total)
        self.add("structured", structured, "Structured content without a schema.")
        self.add("image", image, "A picture.")
        self.add("blocks", blocks, "Several blocks.")
        self.add("zero", zero, "The text 0.")
        self.add("nothing", nothing, "No content at all.")
        self.add("large", large, "A long text.", bytes={"type": "integer"})

    def failures(self) -> None:
        async def fail(arguments: dict[str, Any], _: Any) -> CallToolResult:
            return text(f"no such city: {arguments.get('city', 'Atlantis')}", error=True)

        async def reject(_: dict[str, Any], __: Any) -> CallToolResult:
            raise MCPError(-32050, "the quota is used up", {"retry": 60})

        async def crash(_: dict[str, Any], __: Any) -> CallToolResult:
            print("Traceback: this is the end", file=sys.stderr, flush=True)
            os._exit(3)

        self.add("fail", fail, "Fails as tools do.", city={"type": "string"})
        self.add("reject", reject, "Fails as the protocol does.")
        self.add("crash", crash, "Ends the server.")

    def slow_ones(self) -> None:
        async def slow(arguments: dict[str, Any], _: Any) -> CallToolResult:
            self.started += 1
            try:
                await anyio.sleep(arguments.get("seconds", 60))
            except anyio.get_cancelled_exc_class():
                self.cancelled += 1
                raise
            return text("done")

        async def counts(_: dict[str, Any], __: Any) -> CallToolResult:
            return text(json.dumps({"started": self.started, "cancelled": self.cancelled}))

        async def freeze(arguments: dict[str, Any], _: Any) -> CallToolResult:
            time.sleep(arguments.get("seconds", 60))  # noqa: ASYNC251
            return text("thawed")

        async def progress(arguments: dict[str, Any], context: Any) -> CallToolResult:
            steps = int(arguments.get("steps", 3))
            for step in range(1, steps + 1):
                await context.session.report_progress(step, steps, f"step {step}")
            return text("done")

        self.add("slow", slow, "Takes its time.", seconds={"type": "number"})
        self.add("counts", counts, "How many slow calls were started and cancelled.")
        self.add("freeze", freeze, "Stops the whole server.", seconds={"type": "number"})
        self.add("progress", progress, "Tells how far it is.", steps={"type": "integer"})

    def changes(self) -> None:
        async def grow(_: dict[str, Any], context: Any) -> CallToolResult:
            self.grown += 1
            self.add(f"grown_{self.grown}", self.handlers["echo"], "New here.", value={})
            await context.session.send_tool_list_changed()
            return text(f"grown_{self.grown}")

        async def spawn(_: dict[str, Any], __: Any) -> CallToolResult:
            return text(json.dumps(start_processes()))

        self.add("grow", grow, "Adds a tool.")
        self.add("spawn", spawn, "Starts processes.")

    def odd_names(self) -> None:
        def named(value: str) -> Handler:
            async def handler(arguments: dict[str, Any], _: Any) -> CallToolResult:
                return text(json.dumps({"tool": value, "given": arguments}))

            return handler

        for name in (
            "get_user",
            "get-user",
            "getUserName",
            "delete",
            "grüße",
            "日本語",
            "a b.c/d",
            LONG_NAME,
        ):
            self.add(name, named(name), f"The tool called {name}.", id={"type": "string"})
        hostile = "*/ process.exit(1); /* ` ${1} \u2028 </script> \\"
        self.add("comment", named("comment"), hostile, **{"*/": {"description": hostile}})
        self.add("verbose", named("verbose"), "A very long description. " * 1_000)

    # --- the server ---

    async def list_tools(self, _: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self.listed += 1
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + PAGE
        more = str(end) if end < len(self.tools) else None
        return ListToolsResult(tools=self.tools[start:end], next_cursor=more)

    async def call_tool(self, context: Any, params: Any) -> CallToolResult:
        handler = self.handlers.get(params.name)
        if handler is None:
            raise MCPError(-32602, f"Unknown tool: {params.name}")
        return await handler(params.arguments or {}, context)

    async def list_resources(self, _: Any, __: Any) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def read_resource(self, _: Any, params: Any) -> ReadResourceResult:
        """Reads `file:///a`, `file:///pixel`, or `text:N`, which is a text of N characters."""
        contents = {"file:///a": {"text": "The text of a."}, "file:///pixel": {"blob": PIXEL}}
        kind, _, size = params.uri.partition(":")
        found = {"text": "x" * int(size)} if kind == "text" else contents.get(params.uri)
        if found is None:
            raise MCPError(-32002, f"Resource not found: {params.uri}")
        return ReadResourceResult.model_validate({"contents": [{"uri": params.uri, **found}]})

    def server(self) -> Server[Any]:
        return Server(
            "everything",
            title="Everything",
            version="1.0",
            instructions="Call what you like.",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_read_resource=self.read_resource,
        )


CHANGES = NotificationOptions(tools_changed=True)


def app(everything: Everything, **options: Any) -> Starlette:
    """Streamable HTTP at /mcp."""
    return everything.server().streamable_http_app(**options)


def sse_app(everything: Everything) -> Starlette:
    """SSE at /sse."""
    server = everything.server()
    transport = SseServerTransport("/messages/")

    async def sse(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(streams[0], streams[1], server.create_initialization_options(CHANGES))
        return Response()

    messages = Mount("/messages/", app=transport.handle_post_message)
    return Starlette(routes=[Route("/sse", endpoint=sse), messages])


async def main() -> None:
    server = Everything().server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(CHANGES))


if __name__ == "__main__":
    anyio.run(main)
