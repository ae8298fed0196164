"""Fixtures: two Hutches with the same store, like two servers. Each test module defines the fixture
`settings`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import hutch
from hutch.settings import Settings


@pytest.fixture(scope="module")
async def first(anyio_backend: object, settings: Settings) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
async def second(anyio_backend: object, settings: Settings) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(settings=settings) as opened:
        yield opened
