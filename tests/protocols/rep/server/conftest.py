"""A real server with an operator, and separate users for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.protocols.rep.flow_server import FlowClient, FlowServer, open_flow_server
from tests.protocols.rep.server.helpers import OPERATOR

from hutch.settings import Settings


@pytest.fixture(scope="module")
async def server_and_operator(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[FlowServer, FlowClient]]:
    """One server per test file, with an operator key."""
    home = str(tmp_path_factory.mktemp("server"))
    async with (
        open_flow_server(Settings(home=home), HUTCH_API_KEY=OPERATOR) as server,
        server.running_server(key=OPERATOR) as operator,
    ):
        yield server, operator


@pytest.fixture
def server(server_and_operator: tuple[FlowServer, FlowClient]) -> FlowServer:
    return server_and_operator[0]


@pytest.fixture
def operator(server_and_operator: tuple[FlowServer, FlowClient]) -> FlowClient:
    return server_and_operator[1]


@pytest.fixture
async def ann(server: FlowServer, operator: FlowClient, request: pytest.FixtureRequest) -> FlowClient:
    """A user of this test only."""
    return await server.user(operator, f"ann-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def bo(server: FlowServer, operator: FlowClient, request: pytest.FixtureRequest) -> FlowClient:
    return await server.user(operator, f"bo-{abs(hash(request.node.nodeid))}")


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return f"run-{abs(hash(request.node.nodeid))}"
