"""Servers shared by the contract tests of TPMJS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.tpmjs.harness import (
    SyncServer,
    ToolServer,
    server_with_registry,
    start_server,
    sync_server,
)

NO_WARM_RUNNERS = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}


@pytest.fixture(scope="session")
async def real_registry_server(anyio_backend: object, environment: None) -> AsyncIterator[ToolServer]:
    """A server that uses the tester's registry and keeps no warm runners."""
    async with start_server(**NO_WARM_RUNNERS) as running:
        yield running


@pytest.fixture(scope="session")
async def sync(anyio_backend: object) -> AsyncIterator[SyncServer]:
    async with sync_server() as sync:
        yield sync


@pytest.fixture(scope="session")
async def tool_server(
    anyio_backend: object, environment: None, sync: SyncServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ToolServer]:
    """A server that uses packages published by tests and keeps no warm runners."""
    async with server_with_registry(
        tmp_path_factory.mktemp("tools"), egress_allow=sync.address, log_json=True, **NO_WARM_RUNNERS
    ) as running:
        yield running


@pytest.fixture(scope="session")
async def spare_server(
    anyio_backend: object, environment: None, sync: SyncServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ToolServer]:
    """A server with default settings, which keep a spare of each called package."""
    async with server_with_registry(tmp_path_factory.mktemp("spares"), egress_allow=sync.address) as running:
        yield running


@pytest.fixture(scope="session")
async def short_timeout_server(
    anyio_backend: object, environment: None, sync: SyncServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ToolServer]:
    """A server with a short timeout for tools."""
    async with server_with_registry(
        tmp_path_factory.mktemp("short-timeout"), tool_timeout_ms=1_000, **NO_WARM_RUNNERS
    ) as running:
        yield running
