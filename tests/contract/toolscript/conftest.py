"""Fixtures: three MCP servers behind one gateway, shared by all scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.toolscripts import ScriptEnvironment, everything_entry, usual_environment


@pytest.fixture(scope="session")
async def shared(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScriptEnvironment]:
    async with usual_environment(tmp_path_factory.mktemp("servers")) as scripts:
        await scripts.app.mcp_servers.start(eager=True)
        yield scripts


@pytest.fixture(scope="session")
def everything_config() -> Iterator[dict[str, Any]]:
    """Configuration entry of the `everything` server, for tests that write their own configuration."""
    with everything_entry() as entry:
        yield entry


@pytest.fixture
def scripts(shared: ScriptEnvironment) -> ScriptEnvironment:
    """The shared environment with its recorded requests cleared."""
    shared.requests.clear()
    return shared
