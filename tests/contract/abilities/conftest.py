"""One workshop for most tests; every test has a user of its own in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.abilities.workshop import Workshop, workshop

import hutch
from hutch.settings import Settings


@pytest.fixture(scope="package")
async def runners(anyio_backend: object, environment: None) -> AsyncIterator[hutch.Hutch]:
    """Processes that users share, which they do not by default: one would have to start for every test."""
    async with hutch.Hutch(owners_share=True) as started:
        yield started


@pytest.fixture(scope="package")
async def shared_shop(
    runners: hutch.Hutch, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Workshop]:
    settings = Settings(
        home=str(tmp_path_factory.mktemp("workshop")), ability_timeout_ms=2_000, transform_timeout_ms=1_500
    )
    async with workshop(runners, settings, fetch_seconds=1.0, fetch_bytes=1_000_000) as made:
        yield made


@pytest.fixture
async def shop(shared_shop: Workshop) -> Workshop:
    shared_shop.user = await shared_shop.new_user()
    shared_shop.api.asked.clear()
    shared_shop.api.answers.clear()
    shared_shop.records.clear()
    return shared_shop
