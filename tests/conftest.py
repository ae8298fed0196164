"""One event loop and one sandbox for all tests that only run guest code in it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import hutch

# Which programs to test with, not how they are to behave.
BINARIES = ("HUTCH_DENO", "HUTCH_BWRAP")

Run = Callable[..., Awaitable[hutch.Result]]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the tester's own settings counts, and nothing is written to their home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if (name.startswith("HUTCH_") and name not in BINARIES) or name == "EXECUTOR_API_KEY":
                patch.delenv(name)
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
async def sandbox(anyio_backend: object, environment: None) -> AsyncIterator[hutch.Hutch]:
    """A Hutch with the default settings. Tests that change the pool make their own."""
    async with hutch.Hutch() as started:
        yield started


@pytest.fixture(params=["quickjs", "deno"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(sandbox: hutch.Hutch, engine: str) -> Run:
    """Runs guest code in the engine that the test is for."""
    return partial(sandbox.run, engine=engine)
