"""The two checkers, each started once for a file's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.doors.toolscript.checking import by_deno, checking

from hutch.doors.toolscript.check import Checker


@pytest.fixture(scope="module")
async def native(anyio_backend: object, environment: None) -> AsyncIterator[Checker]:
    async with checking() as checker:
        yield checker


@pytest.fixture(scope="module")
async def slow(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Checker]:
    async with by_deno(tmp_path_factory.mktemp("home")) as checker:
        yield checker


@pytest.fixture(params=["native", "slow"])
def checker(request: pytest.FixtureRequest) -> Checker:
    found: Checker = request.getfixturevalue(request.param)
    return found
