"""Fixtures: one kernel for all tests of the MCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from mcp import Client
from tests.protocols.mcp.harness import ERAS, McpHarness

from hutch.app.app import App
from hutch.protocols.mcp.server import HutchMcpServer
from hutch.settings import load_settings


@pytest.fixture(scope="session")
async def app(anyio_backend: object, environment: None) -> AsyncIterator[App]:
    """An App without prewarmed runners, so that every process belongs to a run."""
    app = await App.create(load_settings({"quickjs_warm": 0, "deno_warm": 0}))
    yield app
    await app.close()


@pytest.fixture
def harness(app: App) -> McpHarness:
    return McpHarness(app)


@pytest.fixture
async def mcp_server(harness: McpHarness) -> AsyncIterator[HutchMcpServer]:
    mcp_server = HutchMcpServer(harness)
    yield mcp_server
    mcp_server.close()


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(mcp_server: HutchMcpServer, era: str) -> AsyncIterator[Client]:
    """An in-process client that uses either the older or the newer MCP handshake."""
    async with Client(mcp_server.server, mode=era) as client:
        yield client
