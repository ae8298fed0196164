"""Servers that the tests of executions share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.tpmjs.served import Executor, Meeting, executor, made_up, meeting

ALONE = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}


@pytest.fixture(scope="session")
async def real(anyio_backend: object, environment: None) -> AsyncIterator[Executor]:
    """With the registry that the tester has, and no process but those that execute something."""
    async with executor(**ALONE) as running:
        yield running


@pytest.fixture(scope="session")
async def meet(anyio_backend: object) -> AsyncIterator[Meeting]:
    async with meeting() as place:
        yield place


@pytest.fixture(scope="session")
async def made(
    anyio_backend: object, environment: None, meet: Meeting, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Executor]:
    """With packages that tests make up, and no process but those that execute something."""
    async with made_up(
        tmp_path_factory.mktemp("made"), egress_allow=meet.address, log_json=True, **ALONE
    ) as running:
        yield running


@pytest.fixture(scope="session")
async def spared(
    anyio_backend: object, environment: None, meet: Meeting, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Executor]:
    """The same as it is by default: the package that was called waits for the next call."""
    async with made_up(tmp_path_factory.mktemp("spared"), egress_allow=meet.address) as running:
        yield running


@pytest.fixture(scope="session")
async def hasty(
    anyio_backend: object, environment: None, meet: Meeting, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Executor]:
    """The same as the first, with little time for a tool."""
    async with made_up(tmp_path_factory.mktemp("hasty"), tool_timeout_ms=1_000, **ALONE) as running:
        yield running
