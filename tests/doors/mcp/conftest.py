"""One kernel for all tests of this door."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from mcp import Client
from tests.doors.mcp.houses import ERAS, House

from hutch.app import App
from hutch.doors.mcp.server import Door
from hutch.settings import load


@pytest.fixture(scope="session")
async def app(anyio_backend: object, environment: None) -> AsyncIterator[App]:
    """Nothing is kept ready, so whatever process there is belongs to a run."""
    app = await App.create(load({"quickjs_warm": 0, "deno_warm": 0}))
    yield app
    await app.close()


@pytest.fixture
def house(app: App) -> House:
    return House(app)


@pytest.fixture
async def door(house: House) -> AsyncIterator[Door]:
    door = Door(house)
    yield door
    door.close()


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(door: Door, era: str) -> AsyncIterator[Client]:
    """A client in this process, of either era."""
    async with Client(door.server, mode=era) as client:
        yield client
