"""One server for the flows of those who mean harm, and its users."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.doors.rep.server.answers import OPERATOR
from tests.doors.rep.stations import Caller, Station, station
from tests.hostile.conftest import peak_bytes
from tests.hostile.flows.harm import MARK, PLACES

from hutch.settings import Settings


@pytest.fixture(scope="module")
async def there(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Station, Caller]]:
    """One server for a file's tests. Its log says all that there is, and nothing of what flows are given."""
    env = {"HUTCH_API_KEY": OPERATOR, "HUTCH_LOG_LEVEL": "debug", "HUTCH_MAX_FLOWS": str(PLACES)}
    home = str(tmp_path_factory.mktemp("station"))
    async with (
        station(Settings(home=home), TRACE_MIND_ALLOW_SHELL="1", HUTCH_MAX_QUEUE="20", **env) as made,
        made.serving(key=OPERATOR) as operator,
    ):
        yield made, operator
        assert (await operator.get("/health")).status_code == 200
        assert peak_bytes(operator.server.process.pid) < 400 * 2**20
        said = "".join(operator.server.seen)
        assert MARK not in said
        assert "hk_" not in said.replace("hk_…", "")
        assert "Traceback" not in said


@pytest.fixture
def place(there: tuple[Station, Caller]) -> Station:
    return there[0]


@pytest.fixture
def operator(there: tuple[Station, Caller]) -> Caller:
    return there[1]


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return f"r-{abs(hash(request.node.nodeid))}"


@pytest.fixture
async def eve(place: Station, operator: Caller, rid: str) -> AsyncIterator[Caller]:
    """Who means harm, with a key for flows and nothing else; her runs are ended with the test."""
    eve = await place.user(operator, f"eve-{rid}")
    yield eve
    for run in (await eve.got("/runs?limit=1000"))["runs"]:
        await eve.post(f"/runs/{run['run_id']}/cancel")


@pytest.fixture
async def bo(place: Station, operator: Caller, rid: str) -> Caller:
    return await place.user(operator, f"bo-{rid}")
