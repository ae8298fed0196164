"""One event loop and one sandbox for all tests that only run guest code in it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch.session.jsonvalue import well_formed

# Which programs to test with, not how they are to behave.
BINARIES = ("HUTCH_DENO", "HUTCH_BWRAP")

Run = Callable[..., Awaitable[hutch.Result]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests, those of one folder share one: they share much."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parent
        name = str(folder) if folder.parts else item.path.name
        item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged may have lone surrogates, which cannot go from one process to another."""
    report = yield
    report.sections = [(name, well_formed(text)) for name, text in report.sections]
    return report


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
