"""Fixtures with real MCP servers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import forked_script
from tests.support.mcp_servers import everything
from tests.support.mcp_servers.asgi_server import running_app

from hutch.mcp_client.config import HttpConfig, McpConfig, ServerConfig, StdioConfig
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.servers import McpServers
from hutch.settings import Settings

SERVERS = Path(everything.__file__).parent
StartServers = Callable[..., Awaitable[McpServers]]
# The timeouts are shorter than those of a server, because a server waits up to half a minute for MCP servers.
SHORT_LIMITS = ServerLimits(
    connect_seconds=20, call_seconds=20, liveness_seconds=0.3, retry_seconds=0.01, max_retries=0
)


def stdio_server(name: str, *arguments: str, **options: Any) -> ServerConfig:
    """Configures one of the tests' stdio servers. With `forked=False`, the server is started as a real child
    process, which takes a second.
    """
    fields = {key: options.pop(key) for key in ("env", "cwd") if key in options}
    if name == "everything":
        file = SERVERS / "everything.py"
        server = forked_script(file) if options.pop("forked", True) else [str(file)]
    else:
        server = [str(SERVERS / "hostile.py"), name]
    transport = StdioConfig(command=sys.executable, args=(*server, *arguments), **fields)
    return ServerConfig(name=options.pop("server_name", name), transport=transport, **options)


def http_server(name: str, url: str, **options: Any) -> ServerConfig:
    fields = {key: options.pop(key) for key in ("headers", "protocol", "oauth") if key in options}
    return ServerConfig(name=name, transport=HttpConfig(url=url, **fields), **options)


def config(*servers: ServerConfig) -> McpConfig:
    return McpConfig({server.name: server for server in servers})


@pytest.fixture
async def start() -> AsyncIterator[StartServers]:
    """Returns a function that creates `McpServers` and, unless `eager` is false, connects them. The fixture
    closes them at the end of the test.
    """
    started: list[McpServers] = []

    async def make(
        *servers: ServerConfig, eager: bool = True, max_line_bytes: int | None = None, **options: Any
    ) -> McpServers:
        settings = Settings() if max_line_bytes is None else Settings(max_line_bytes=max_line_bytes)
        started.append(McpServers(config(*servers), settings, **{"limits": SHORT_LIMITS, **options}))
        await started[-1].start(eager=eager)
        return started[-1]

    yield make
    for servers in started:
        await servers.close()


@pytest.fixture(scope="session")
def urls() -> Iterator[dict[str, str]]:
    """Runs the `everything` server over HTTP in three forms. Yields their URLs."""
    http, json, sse = (everything.Everything() for _ in range(3))
    with (
        running_app(everything.app(http)) as streamed,
        running_app(everything.app(json, json_response=True)) as plain,
        running_app(everything.sse_app(sse)) as events,
    ):
        yield {"http": f"{streamed.url}/mcp", "json": f"{plain.url}/mcp", "sse": f"{events.url}/sse"}


@pytest.fixture(scope="session")
async def connected(
    anyio_backend: object, environment: None, urls: dict[str, str]
) -> AsyncIterator[McpServers]:
    """Connections to the `everything` server over every transport. Tests that use them must not change the
    server.
    """
    servers = config(
        stdio_server("everything", server_name="stdio"),
        http_server("http", urls["http"]),
        http_server("json", urls["json"]),
        http_server("sse", urls["sse"], protocol="sse"),
    )
    async with McpServers(servers, Settings(), limits=SHORT_LIMITS) as connected:
        await connected.start()
        yield connected


@pytest.fixture(params=["stdio", "http", "json", "sse"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)
