"""Fixtures: a server with a store and MCP tools that need approvals, and the calls of these tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.mcp.durable_server import DurableServer, serving


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
async def server(anyio_backend: object, home: Path) -> AsyncIterator[DurableServer]:
    async with serving(home) as server:
        yield server


@pytest.fixture
def calls(server: DurableServer) -> list[Any]:
    server.upstream.calls.clear()
    return server.upstream.calls
