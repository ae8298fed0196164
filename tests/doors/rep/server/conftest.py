"""A real server with an operator, and users of each test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.doors.rep.server.answers import OPERATOR
from tests.doors.rep.stations import Caller, Station, station

from hutch.settings import Settings


@pytest.fixture(scope="module")
async def there(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Station, Caller]]:
    """One server for a file's tests, which has an operator's key."""
    home = str(tmp_path_factory.mktemp("station"))
    async with (
        station(Settings(home=home), HUTCH_API_KEY=OPERATOR) as made,
        made.serving(key=OPERATOR) as operator,
    ):
        yield made, operator


@pytest.fixture
def place(there: tuple[Station, Caller]) -> Station:
    return there[0]


@pytest.fixture
def operator(there: tuple[Station, Caller]) -> Caller:
    return there[1]


@pytest.fixture
async def ann(place: Station, operator: Caller, request: pytest.FixtureRequest) -> Caller:
    """A user of this test's own."""
    return await place.user(operator, f"ann-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def bo(place: Station, operator: Caller, request: pytest.FixtureRequest) -> Caller:
    return await place.user(operator, f"bo-{abs(hash(request.node.nodeid))}")


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return f"run-{abs(hash(request.node.nodeid))}"
