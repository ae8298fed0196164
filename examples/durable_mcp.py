"""Kills a server whose MCP tool `run_code` waits for an approval. A second server asks the client's user for
the approval and continues the code.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.types import ElicitResult, InputRequiredResult

CODE = """
    const [price, order] = await Promise.all([
        tools.shop.price({item: "chair"}),
        tools.shop.order({item: "chair"}),
    ]);
    return `${order}: ${price} EUR`;
"""
ARGUMENTS = {"code": CODE, "language": "javascript"}


def serve_shop() -> None:
    """Runs an MCP server with two tools on stdin and stdout."""
    shop = MCPServer("shop", log_level="WARNING")
    shop.add_tool(lambda item: 80, name="price")
    shop.add_tool(lambda item: f"ordered a {item}", name="order")
    shop.run()


async def ask_user(context: Any, params: Any) -> ElicitResult:
    print(f"{params.message}\nyes")
    return ElicitResult(action="accept")


@asynccontextmanager
async def connected(home: str) -> AsyncIterator[tuple[Process, Client]]:
    """Starts `hutch serve`, and yields its process and a client with protocol 2026-07-28."""
    command = (sys.executable, "-m", "hutch", "serve", "--port", "0")
    variables = {**os.environ, "HUTCH_HOME": home}
    process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None
        url = re.search(r"http://\S+", (await process.stdout.readline()).decode())
        assert url is not None
        async with Client(f"{url[0]}/mcp", mode="2026-07-28", elicitation_callback=ask_user) as client:
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def main(home: str) -> None:
    async with connected(home) as (process, client):
        asked = await client.session.call_tool("run_code", ARGUMENTS, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        process.kill()
        await process.wait()
        print("the server was killed while the code waited for an approval")
    async with connected(home) as (_, client):
        result = await client.call_tool("run_code", ARGUMENTS, request_state=asked.request_state)
        print(result.content[0].text)


if sys.argv[1:] == ["shop"]:
    serve_shop()
else:
    with tempfile.TemporaryDirectory() as home:
        config = Path(home, "servers.json")
        shop = {"command": sys.executable, "args": [str(Path(__file__).resolve()), "shop"]}
        config.write_text(json.dumps({"mcpServers": {"shop": shop}}))
        settings = f'mcp_config = ["{config}"]\n[approvals]\nshop__order = "ask"\n'
        Path(home, "hutch.toml").write_text(settings)
        asyncio.run(main(home))
