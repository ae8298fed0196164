"""Fixtures: a server with SQLite that most tests of the Abilities protocol share, and users that exist for
one test only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.protocols.abilities import harness
from tests.protocols.abilities.harness import AbilityServer, UserClient


@pytest.fixture(scope="package")
async def ability_server(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityServer]:
    """A server that has an operator's key in addition to the keys of users."""
    async with harness.start_ability_server(
        tmp_path_factory.mktemp("abilities"), HUTCH_API_KEY="operator", HUTCH_ABILITY_RATE_LIMIT="0"
    ) as server:
        yield server


@pytest.fixture
async def bo(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    """A user of this test only."""
    return await ability_server.user(f"bo-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def ann(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    """Another user."""
    return await ability_server.user(f"ann-{abs(hash(request.node.nodeid))}")
