"""Fixtures: both check backends, started once per file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.protocols.toolscript.checkers import deno_checker, running_checker

from hutch.protocols.toolscript.checker.checker import Checker


@pytest.fixture(scope="module")
async def native(anyio_backend: object, environment: None) -> AsyncIterator[Checker]:
    async with running_checker() as checker:
        yield checker


@pytest.fixture(scope="module")
async def deno_only(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Checker]:
    async with deno_checker(tmp_path_factory.mktemp("home")) as checker:
        yield checker


@pytest.fixture(params=["native", "deno_only"])
def checker(request: pytest.FixtureRequest) -> Checker:
    found: Checker = request.getfixturevalue(request.param)
    return found
