"""Fixtures: a server, a client that is connected to it, and the tools of this client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.api.remote.suspension import MASTER_KEY, Tools
from tests.support.processes import ServeProcess, running_server

import hutch
from hutch.api.remote import Remote


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = {"HUTCH_HOME": str(tmp_path_factory.mktemp("home")), "HUTCH_MASTER_KEY": MASTER_KEY}
    with running_server(HUTCH_MAX_FILE_BYTES="4000000", **home) as running:
        yield running


@pytest.fixture
async def h(server: ServeProcess) -> AsyncIterator[Remote]:
    async with hutch.connect(server.execbox) as client:
        yield client
