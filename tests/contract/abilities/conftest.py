"""Fixtures: an ability harness that most tests share. Each test has a new user."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.abilities.harness import AbilityHarness, ability_harness

import hutch
from hutch.settings import Settings


@pytest.fixture(scope="package")
async def runners(anyio_backend: object, environment: None) -> AsyncIterator[hutch.Hutch]:
    """A Hutch whose users share runners, which is not the default. Each test has a new user, for whom a new
    runner would start otherwise.
    """
    async with hutch.Hutch(owners_share=True) as started:
        yield started


@pytest.fixture(scope="package")
async def shared_harness(
    runners: hutch.Hutch, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityHarness]:
    settings = Settings(
        home=str(tmp_path_factory.mktemp("abilities")), ability_timeout_ms=2_000, transform_timeout_ms=1_500
    )
    async with ability_harness(runners, settings, fetch_seconds=1.0, max_fetch_bytes=1_000_000) as harness:
        yield harness


@pytest.fixture
async def harness(shared_harness: AbilityHarness) -> AbilityHarness:
    shared_harness.user = await shared_harness.new_user()
    shared_harness.api.requests.clear()
    shared_harness.api.responses.clear()
    shared_harness.records.clear()
    return shared_harness
