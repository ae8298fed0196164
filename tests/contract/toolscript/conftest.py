"""One place for all scripts: three MCP servers behind one gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.toolscripts import Place, everything_here, usual_place


@pytest.fixture(scope="session")
async def shared(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    async with usual_place(tmp_path_factory.mktemp("servers")) as place:
        await place.app.upstreams.start(eager=True)
        yield place


@pytest.fixture(scope="session")
def every() -> Iterator[dict[str, Any]]:
    """A server for configurations of a test's own, which leaves it as it was."""
    with everything_here() as entry:
        yield entry


@pytest.fixture
def scripts(shared: Place) -> Place:
    """What was asked of the gateway before is forgotten."""
    shared.asked.clear()
    return shared
