"""A server for hostile flows, and its users."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.hostile.conftest import peak_bytes
from tests.hostile.flows.helpers import MARK, MAX_FLOWS
from tests.protocols.rep.flow_server import FlowClient, FlowServer, open_flow_server
from tests.protocols.rep.server.helpers import OPERATOR

from hutch.settings import Settings


@pytest.fixture(scope="module")
async def server_and_operator(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[FlowServer, FlowClient]]:
    """One server per test file, which logs at debug level. At the end, checks that the log has no content of
    flows.
    """
    env = {"HUTCH_API_KEY": OPERATOR, "HUTCH_LOG_LEVEL": "debug", "HUTCH_MAX_FLOWS": str(MAX_FLOWS)}
    home = str(tmp_path_factory.mktemp("server"))
    async with (
        open_flow_server(
            Settings(home=home), TRACE_MIND_ALLOW_SHELL="1", HUTCH_MAX_QUEUE="20", **env
        ) as server,
        server.running_server(key=OPERATOR) as operator,
    ):
        yield server, operator
        assert (await operator.get("/health")).status_code == 200
        assert peak_bytes(operator.server.process.pid) < 400 * 2**20
        log = "".join(operator.server.seen)
        assert MARK not in log
        assert "hk_" not in log.replace("hk_…", "")
        assert "Traceback" not in log


@pytest.fixture
def server(server_and_operator: tuple[FlowServer, FlowClient]) -> FlowServer:
    return server_and_operator[0]


@pytest.fixture
def operator(server_and_operator: tuple[FlowServer, FlowClient]) -> FlowClient:
    return server_and_operator[1]


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return f"r-{abs(hash(request.node.nodeid))}"


@pytest.fixture
async def eve(server: FlowServer, operator: FlowClient, rid: str) -> AsyncIterator[FlowClient]:
    """An attacker with a key that allows only flows. Her runs are cancelled after the test."""
    eve = await server.user(operator, f"eve-{rid}")
    yield eve
    for run in (await eve.get_json("/runs?limit=1000"))["runs"]:
        await eve.post(f"/runs/{run['run_id']}/cancel")


@pytest.fixture
async def bo(server: FlowServer, operator: FlowClient, rid: str) -> FlowClient:
    return await server.user(operator, f"bo-{rid}")
