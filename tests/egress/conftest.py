"""A server of the test's own, and a broker that may reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.egress.upstreams import Upstream, brokered, upstream

from hutch.egress.broker import Broker


@pytest.fixture
async def server(anyio_backend: object) -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


@pytest.fixture
async def broker(anyio_backend: object) -> AsyncIterator[Broker]:
    async with brokered() as made:
        yield made
