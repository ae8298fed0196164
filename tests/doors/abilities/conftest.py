"""One server for the tests of this door, on SQLite; those that need another make it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.doors.abilities import towns
from tests.doors.abilities.towns import Citizen, Town


@pytest.fixture(scope="package")
async def town(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    """With a key of the operator's, to see that users' keys and that one are not mixed up."""
    async with towns.town(
        tmp_path_factory.mktemp("town"), HUTCH_API_KEY="operator", HUTCH_ABILITY_RATE_LIMIT="0"
    ) as made:
        yield made


@pytest.fixture
async def bo(town: Town, request: pytest.FixtureRequest) -> Citizen:
    """A user of this test's own."""
    return await town.user(f"bo-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def ann(town: Town, request: pytest.FixtureRequest) -> Citizen:
    """Another one."""
    return await town.user(f"ann-{abs(hash(request.node.nodeid))}")
