"""One place for all scripts: three MCP servers behind one gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.toolscripts import Place, usual_place


@pytest.fixture(scope="session")
async def shared(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    async with usual_place(tmp_path_factory.mktemp("servers")) as place:
        await place.app.upstreams.start(eager=True)
        yield place


@pytest.fixture
def scripts(shared: Place) -> Place:
    """What was asked of the gateway before is forgotten."""
    shared.asked.clear()
    return shared
